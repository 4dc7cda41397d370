import argparse
import json
import logging
import shutil
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.tables import read_table
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.prediction import resolve_stage as stage
from kareus.workload import writing
from kareus.workload.config import Workload
from kareus.workload.resolve import check_any_accepted, resolve, resolve_accepted, with_split
from kareus.workload.tables import WORKLOADS

DEFAULT = "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100"
TOO_LARGE = "llama3.2-3b_pp2-tp8_mbs16_seq4096_a100"


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        (
            ["parallelism.tp=5"],
            "parallelism.tp=5: must fit a node of 8 GPUs, or fill nodes, evenly; allowed: 1, 2, 4, 8.",
        ),
        (["parallelism.tp=16"], "parallelism.tp=16: must divide model.num_attention_heads (24); allowed: 1, 2, 4, 8."),
        (
            ["parallelism=cp2tp4", "parallelism.cp=3"],
            "parallelism.cp=3: together with parallelism.tp=4 it must fit a node of 8 GPUs, or fill nodes, evenly; "
            "allowed beside that tp: 1, 2.",
        ),
        (
            ["model.num_attention_heads=28", "model.num_key_value_heads=4"],
            "parallelism.tp=8: must divide model.num_attention_heads (28); allowed: 1, 2, 4.",
        ),
        (
            ["model.num_key_value_heads=4", "parallelism.tp=5"],
            "parallelism.tp=5: must fit a node of 8 GPUs, or fill nodes, evenly; allowed: 1, 2, 4.",
        ),
        (
            ["parallelism=cp2tp4", "parallelism.tp=8", "model.vocab_size=128260"],
            "parallelism.tp=8: must divide model.vocab_size (128260); allowed: 1, 2, 4.",
        ),
        (
            ["parallelism=cp2tp4", "parallelism.cp=7", "sequence_length=4100"],
            "parallelism.cp=7: together with parallelism.tp=4 it must fit a node of 8 GPUs, or fill nodes, evenly; "
            "allowed beside that tp: 1, 2.",
        ),
        (
            ["parallelism=cp2tp4", "parallelism.tp=1", "parallelism.cp=3", "sequence_length=4100"],
            "parallelism.cp=3: together with parallelism.tp=1 it must fit a node of 8 GPUs, or fill nodes, evenly; "
            "allowed beside that tp: 1, 2.",
        ),
        (
            ["parallelism.cp=3", "parallelism.tp=5"],
            "parallelism.tp=5: must fit a node of 8 GPUs, or fill nodes, evenly; allowed: 1, 2, 4, 8.",
        ),
        (
            ["model.num_attention_heads=20", "model.num_key_value_heads=4"],
            "parallelism.tp=8: must divide model.num_attention_heads (20); allowed: 1, 2, 4.",
        ),
        (
            ["model.num_key_value_heads=4"],
            "parallelism.tp=8: must divide model.num_key_value_heads (4); allowed: 1, 2, 4.",
        ),
        (
            ["model.intermediate_size=8196"],
            "parallelism.tp=8: must divide model.intermediate_size (8196); allowed: 1, 2, 4.",
        ),
        (
            ["model.vocab_size=50257"],
            "parallelism.tp=8: must divide model.vocab_size (50257); allowed: 1.",
        ),
        (
            ["parallelism=cp2tp4", "sequence_length=4098"],
            "sequence_length=4098: must be a multiple of 4 (2 x parallelism.cp=2), the chunks that balance causal "
            "attention.",
        ),
        (
            ["pipeline=interleaved", "num_microbatches=7"],
            "num_microbatches=7: must be a multiple of parallelism.pp (2) with pipeline.schedule=interleaved, which "
            "takes them through its chunks in groups of that many.",
        ),
        (
            ["pipeline=interleaved", "parallelism.pp=1"],
            "parallelism.pp=1: must be 2 or more with pipeline.schedule=interleaved.",
        ),
        (
            ["pipeline=zb-h1", "parallelism.pp=4", "num_microbatches=3"],
            "num_microbatches=3: must be at least parallelism.pp (4) with pipeline.schedule=zb-h1, which fills the "
            "drain with as many weight gradients; use more, or pipeline=1f1b.",
        ),
        (["pipeline=zb-v", "parallelism.pp=1"], "parallelism.pp=1: must be 2 or more with pipeline.schedule=zb-v."),
        (
            ["pipeline=dualpipe-v", "num_microbatches=3"],
            "num_microbatches=3: must be at least twice parallelism.pp (2) with pipeline.schedule=dualpipe-v, which "
            "runs forwards beside backwards; use more, or pipeline=zb-v.",
        ),
        (["parallelism.pp=29"], "parallelism.pp=29: must be at most model.num_layers (28), a block each."),
    ],
)
def test_a_combination_that_cannot_run_says_why(overrides: list[str], refusal: str) -> None:
    (resolved,) = resolve(overrides, CONFIG)
    assert (resolved.workload, resolved.refusal) == (None, refusal)
    with pytest.raises(RefusedWorkloadError) as raised:
        check_any_accepted([resolved])
    assert str(raised.value) == f"{resolved.name}: {refusal}"


def test_a_sweep_keeps_what_can_run() -> None:
    accepted, refused = resolve(["microbatch_size=8,16"], CONFIG)
    assert (accepted.name, accepted.gpus, accepted.refusal) == (DEFAULT, 16, None)
    assert accepted.workload is not None
    assert accepted.workload.parallelism.layers_per_stage == (15, 13)
    assert (refused.name, refused.workload) == (TOO_LARGE, None)
    assert refused.memory is not None
    assert list(resolve_accepted(["microbatch_size=8,16"], CONFIG)) == [DEFAULT]


def test_a_workload_that_a_sweep_repeats_is_resolved_once() -> None:
    assert [one.name for one in resolve(["seed=0,0", "parallelism.layers_per_stage=null,[15,13]"], CONFIG)] == [DEFAULT]


def test_a_sweep_without_a_runnable_member_is_refused() -> None:
    with pytest.raises(RefusedWorkloadError) as raised:
        resolve_accepted(["parallelism.tp=5,7"], CONFIG)
    assert str(raised.value) == (
        "all 2 combinations are refused; the first, llama3.2-3b_pp2-tp5_mbs8_seq4096_a100: parallelism.tp=5: must fit "
        "a node of 8 GPUs, or fill nodes, evenly; allowed: 1, 2, 4, 8."
    )


def test_an_odd_microbatch_is_planned_without_nanobatches() -> None:
    assert list(resolve_accepted(["microbatch_size=7"], CONFIG)) == ["llama3.2-3b_pp2-tp8_mbs7_seq4096_a100"]


def test_two_workloads_never_share_a_name(tmp_path: Path) -> None:
    config = Path(shutil.copytree(CONFIG, tmp_path / "config"))
    text = (config / "gpu" / "h100-sxm5-80gb.yaml").read_text()
    (config / "gpu" / "h100.yaml").write_text(text.replace("700.0", "600.0"))  # the name that names abbreviate to
    with pytest.raises(ConfigError) as raised:
        resolve(["gpu=h100-sxm5-80gb,h100"], config)
    name = DEFAULT.replace("a100", "h100")
    assert str(raised.value) == (
        f"gpu=h100: would share the name {name} with another workload; rename one of the options that differ."
    )


def run(output: Path, *overrides: str, config_dir: Path = CONFIG) -> None:
    parser = argparse.ArgumentParser()
    stage.add_arguments(parser)
    stage.run(parser.parse_args([*overrides, "--config-dir", str(config_dir), "--output", str(output)]))


def test_the_command_writes_accepted_workloads_and_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run(tmp_path, "microbatch_size=8,16")
    accepted, refused = read_table(tmp_path / "workloads.parquet", WORKLOADS).rows(named=True)
    assert (accepted["workload"], accepted["accepted"], accepted["layers_per_stage"]) == (DEFAULT, True, [15, 13])
    assert (refused["workload"], refused["accepted"], refused["overrides"]) == (
        TOO_LARGE,
        False,
        ["microbatch_size=16"],
    )
    held = (
        "weights_gib",
        "gradients_gib",
        "optimizer_gib",
        "in_flight_gib",
        "transfers_gib",
        "communicators_gib",
        "workspace_gib",
        "reserve_gib",
    )
    assert accepted["total_gib"] == pytest.approx(sum(accepted[part] for part in held) + accepted["blocks_gib"])
    assert [path.parent.parent.name for path in tmp_path.rglob("workload.yaml")] == [DEFAULT]
    written = load_slice(tmp_path / DEFAULT / "config" / "workload.yaml", Workload)
    assert written == resolve_accepted([], CONFIG)[DEFAULT]
    assert [line.split()[0] for line in caplog.messages] == [
        "workload", DEFAULT, TOO_LARGE, "llama3.2-3b:", f"{TOO_LARGE}:", "cheapest",
        "parallelism.sequence_parallel=true", "parallelism.pp=3",
    ]  # fmt: skip
    assert "refused: microbatch_size=16" in caplog.messages[2]
    # parameters as published; a token costs six times the weights it is multiplied with, and 3 x 2 x 28 x 3,072 x 4,096
    gflops = (6 * 3_212_574_720 + 6 * 28 * 3072 * 4096) / 1e9  # norms and their 175,104 weights are no matrices
    said = f"3,212,749,824 parameters, {gflops:.4g} GFLOPs a token in sequences of 4,096"
    assert caplog.messages[3] == f"llama3.2-3b: {said}"


def test_the_command_reports_a_replaced_configuration(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = Path(shutil.copytree(CONFIG, tmp_path / "config"))
    run(tmp_path / "results", config_dir=config)
    with caplog.at_level(logging.INFO):
        run(tmp_path / "results", config_dir=config)
        assert not [line for line in caplog.messages if "edited" in line]
        gpu = config / "gpu" / "a100-sxm4-40gb.yaml"
        gpu.write_text(gpu.read_text().replace("power_limit_w: 400.0", "power_limit_w: 350.0"))
        run(tmp_path / "results", config_dir=config)
    path = tmp_path / "results" / DEFAULT / "config" / "workload.yaml"
    assert f"{path}: the configuration was edited since it was written; written anew." in caplog.messages
    assert load_slice(path, Workload).gpu.power_limit_w == 350.0


@pytest.mark.parametrize(
    ("sizes", "said", "listed"),
    [("16", "out of memory", 0), ("16,32", "all 2 combinations are refused; the reasons are in the list.", 3)],
)
def test_the_command_records_refusals_and_says_each_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sizes: str, said: str, listed: int
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(RefusedWorkloadError, match=said):
        run(tmp_path, f"microbatch_size={sizes}")
    rows = read_table(tmp_path / "workloads.parquet", WORKLOADS).to_dicts()
    assert [row["overrides"] for row in rows] == [[f"microbatch_size={size}"] for size in sizes.split(",")]
    assert all(not row["accepted"] and "out of memory" in row["refusal"] for row in rows)
    why = next(n for n, line in enumerate(caplog.messages) if line.startswith(f"{TOO_LARGE}: stage 0 "))
    assert why == listed
    assert not list(tmp_path.rglob("workload.yaml"))


def test_a_hugging_face_model_resolves_beside_an_option(tmp_path: Path) -> None:
    file = tmp_path / "My Model" / "config.json"
    file.parent.mkdir()
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 128256}
    heads = {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    file.write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True} | sizes | heads))
    ours, theirs = resolve([f"model=qwen3-1.7b,'{file}'"], CONFIG)
    assert ours.name == "qwen3-1.7b_pp2-tp8_mbs8_seq4096_a100"
    assert theirs.name.startswith("my-model-")
    assert theirs.workload is not None
    assert theirs.workload.parallelism.layers_per_stage == (9, 7)  # the head weighs 2.8 blocks


@pytest.mark.parametrize(
    "overrides",
    [
        ["parallelism.tp=7", "model.num_attention_heads=28", "model.num_key_value_heads=4"],
        ["parallelism.tp=3", "model.intermediate_size=8196", "parallelism.cp=2"],
        ["parallelism.tp=2", "parallelism.cp=5", "sequence_length=4100"],
    ],
)
def test_what_is_suggested_is_not_refused_next(overrides: list[str]) -> None:
    (refused,) = resolve(overrides, CONFIG)
    assert refused.refusal is not None
    key, allowed = refused.refusal.partition("=")[0], refused.refusal.rstrip(".").rpartition(": ")[2]
    others = [override for override in overrides if not override.startswith(key)]
    for one in resolve([*others, f"{key}={allowed.replace(' ', '')}"], CONFIG):
        assert one.refusal is None or "must" not in one.refusal  # memory may still be short


def test_a_configuration_that_is_no_text_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writing.write_resolved(resolve([], CONFIG), tmp_path)
    path = tmp_path / DEFAULT / "config/workload.yaml"
    written = path.read_bytes()
    path.write_bytes(written.replace(b"seed", b"s\xffed", 1))
    with caplog.at_level(logging.INFO):
        writing.write_resolved(resolve([], CONFIG), tmp_path)
    assert path.read_bytes() == written
    assert f"{path}: the configuration was edited since it was written; written anew." in caplog.messages


def test_sequence_parallelism_means_nothing_on_one_gpu() -> None:
    (one,) = resolve(["parallelism.tp=1", "parallelism.sequence_parallel=true", "model=qwen3-1.7b"], CONFIG)
    (other,) = resolve(["parallelism.tp=1", "model=qwen3-1.7b"], CONFIG)
    assert one.name == other.name
    assert not with_split(one.composed).parallelism.sequence_parallel


def test_shared_tokens_have_to_divide_by_the_group() -> None:
    (refused,) = resolve(["parallelism.sequence_parallel=true", "sequence_length=4100"], CONFIG)
    assert refused.refusal == (
        "sequence_length=4100: must be a multiple of 8 (parallelism.tp=8) with parallelism.sequence_parallel=true, "
        "which cuts sequences in as many parts; or set it to false."
    )
