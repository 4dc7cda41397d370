"""Measured memory: small files in the formats of published tables, with sums by hand as oracles."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.calibrate.memory_fit import documented, fit_memory
from kareus.cli import main
from kareus.errors import ConfigError
from kareus.evidence.memory import answer_memory, errors_of
from kareus.model.training_options import RecomputedModule
from kareus.prediction.lines import read_lines
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.measured_memory import memory_row, with_numbers, workload_of
from kareus.prediction.memory_formats import MEGATRON, NANOTRON, format_of
from kareus.workload.config import Workload
from kareus.workload.memory import MemoryFit, estimate_memory, stage_memory
from kareus.workload.state_memory import stage_dense_blocks

GIB = 2**30
GPT = {
    "test": "gpt", "platform": "dgx", "group": "gpt", "gpu": "h100", "num_gpus": "8",
    "mem_max_allocated_bytes": "60000000000", "tensor-model-parallel-size": "1.0",
    "pipeline-model-parallel-size": "4.0", "num-layers-per-virtual-pipeline-stage": "1.0", "micro-batch-size": "1",
    "global-batch-size": "8", "seq-length": "8192.0", "num-layers": "32.0", "hidden-size": "4096",
    "num-attention-heads": "32", "group-query-attention": "True", "num-query-groups": "8.0", "vocab-size": "131073.0",
    "untie-embeddings-and-output-weights": "True", "use-distributed-optimizer": "True", "bf16": "True",
    "transformer-impl": "transformer_engine", "num-experts": "", "decoder-first-pipeline-num-layers": "",
    "decoder-last-pipeline-num-layers": "", "hidden-dropout": "",
}  # fmt: skip
SWEEP = {
    "model": "1B", "dp": "8", "pp": "1", "tp": "1", "zero": "0", "mbs": "1", "gbs": "256", "seq_len": "4096",
    "status": "ran", "iteration_time_s": "3.3", "gpu_memory_gb": "36.7", "batch_consistent": "1",
}  # fmt: skip


def written(path: Path, *rows: Mapping[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_states_of_the_last_rank_are_those_of_its_layers_and_head(tmp_path: Path) -> None:
    """By hand: 8 of 32 blocks with 8 of 32 heads for keys, GELU, biases, learned positions on the first stage alone."""
    _, lines = read_lines(written(tmp_path / "m.csv", GPT))
    (one,) = answer_memory(lines, MEGATRON, (), CONFIG).scored
    hidden, ffn, vocabulary = 4096, 4 * 4096, 131_200  # padded to a multiple of 128
    block = hidden * (2 * hidden + 2 * 1024 + 2 * ffn) + (hidden + 2 * 1024 + hidden) + (ffn + hidden) + 4 * hidden
    parameters = 8 * block + vocabulary * hidden + 2 * hidden
    assert one.estimate.stage == 3
    assert one.estimate.states_gib == pytest.approx((2 + 4 + 12 / 2) * parameters / GIB)
    # 29 of 32 passes in flight: the input, 3 more of the hidden size, 3 of attention's widths, 8 of the MLP's, 2 masks.
    tokens = 8192
    kept = 2 * tokens * hidden * (1 + 3 + 2 + 0.5 + 8)
    excess = one.workload.software.kept_excess
    passes = 2 * tokens * hidden + excess * (kept - 2 * tokens * hidden) + 2 * tokens * hidden
    assert one.estimate.in_flight_gib == pytest.approx(29 * passes / GIB)
    assert one.error == pytest.approx(one.estimate.allocated_gib * GIB / 60e9 - 1)


def test_uneven_stages_and_dropout_follow_the_columns(tmp_path: Path) -> None:
    uneven = GPT | {
        "num-layers-per-virtual-pipeline-stage": "", "decoder-first-pipeline-num-layers": "2",
        "decoder-last-pipeline-num-layers": "6", "hidden-dropout": "0.0",
    }  # fmt: skip
    _, lines = read_lines(written(tmp_path / "m.csv", uneven))
    row = memory_row(lines[0], MEGATRON)
    workload = workload_of(row, MeasuredWorkloads((), CONFIG))
    assert workload.parallelism.split == (2, 12, 12, 6)
    assert not workload.software.stream_dropout


def test_rows_that_no_workload_represents_are_listed_by_name_and_reason(tmp_path: Path) -> None:
    experts = GPT | {"test": "mixture", "fp8-format": "hybrid"}
    odd = GPT | {"test": "odd", "decoder-first-pipeline-num-layers": "3"}
    path = written(tmp_path / "m.csv", GPT | {"fp8-format": ""}, experts, odd, GPT | {"mem_max_allocated_bytes": ""})
    _, lines = read_lines(path)
    answer = answer_memory(lines, MEGATRON, (), CONFIG)
    assert [refusal.line for refusal in answer.refused] == [3, 4, 5]
    assert "mixture: fp8-format=hybrid: weights in fp8" in answer.refused[0].reason
    assert "the stages do not share 32 layers" in answer.refused[1].reason
    assert "mem_max_allocated_bytes" in answer.refused[2].reason


MIXTURE = GPT | {
    "num-layers-per-virtual-pipeline-stage": "", "num-layers": "8", "num-experts": "8", "moe-ffn-hidden-size": "1024",
    "moe-router-topk": "2", "expert-model-parallel-size": "4", "moe-layer-freq": "([0]*3+[1]*5)", "swiglu": "True",
    "tensor-model-parallel-size": "2", "pipeline-model-parallel-size": "2", "expert-tensor-parallel-size": "1",
    "pipeline-model-parallel-layout": "Et*3|tt|t|ttmL", "mtp-num-layers": "1", "multi-latent-attention": "True",
    "q-lora-rank": "1536", "kv-lora-rank": "512", "global-batch-size": "32", "num_gpus": "16",
    "recompute-granularity": "selective", "recompute-modules": "[mla_up_proj moe_act]", "mem_allocated_bytes": "",
}  # fmt: skip


def mixture(tmp_path: Path, **changes: str) -> Workload:
    _, lines = read_lines(written(tmp_path / "m.csv", MIXTURE | changes))
    return workload_of(memory_row(lines[0], MEGATRON), MeasuredWorkloads((), CONFIG))


def test_experts_latent_attention_and_a_text_of_stages_follow_the_columns(tmp_path: Path) -> None:
    own = mixture(tmp_path)
    assert own.model.experts is not None
    assert (own.model.experts.count, own.model.experts.width, own.model.mtp_layers) == (8, 1024, 1)
    assert (own.model.head_dim, own.model.intermediate_size) == (192, 10880)
    assert (own.parallelism.ep, own.parallelism.etp, own.parallelism.dp) == (4, 1, 4)
    assert (own.parallelism.split, own.chunks) == ((4, 4), 2)
    assert [stage_dense_blocks(own, stage) for stage in range(2)] == [3, 0]
    assert own.training.recompute_modules == (RecomputedModule.MLA_UP_PROJECTION, RecomputedModule.MOE_ACTIVATION)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_replicas_that_no_column_has_are_told_by_what_stays_allocated(tmp_path: Path, replicas: int) -> None:
    told = mixture(tmp_path, num_gpus=str(4 * replicas))
    states = stage_memory(told, 1).states_gib * GIB
    own = mixture(tmp_path, num_gpus="", mem_allocated_bytes=str(round(1.02 * states)))
    assert own.parallelism == told.parallelism


def test_a_sweep_tells_what_ran_from_what_crashed(tmp_path: Path) -> None:
    crashed = SWEEP | {"status": "crashed_or_oom", "mbs": "8", "gpu_memory_gb": "", "iteration_time_s": ""}
    _, lines = read_lines(written(tmp_path / "s.csv", SWEEP, crashed, SWEEP | {"batch_consistent": "0"}))
    answer = answer_memory(lines, NANOTRON, (), CONFIG)
    ran, broken = answer.scored
    assert (ran.fit, broken.fit) == (MemoryFit.FITS, MemoryFit.REFUSED)
    errors = errors_of(answer)
    assert (errors["ran_refused_pct"], errors["crashed_refused_pct"]) == (0, 100)
    assert errors["memory_mape_pct"] == pytest.approx(100 * abs(ran.error))
    assert len(answer.refused) == 1


def test_what_fills_stages_gives_the_first_more_blocks_than_the_last(tmp_path: Path) -> None:
    """The head of 131,072 rows is as much work as four blocks of the 1B model."""
    _, lines = read_lines(written(tmp_path / "s.csv", SWEEP | {"dp": "2", "pp": "4"}))
    workload = workload_of(memory_row(lines[0], NANOTRON), MeasuredWorkloads((), CONFIG))
    assert workload.parallelism.split == (5, 5, 5, 1)


def test_a_model_of_no_known_sizes_has_to_give_them(tmp_path: Path) -> None:
    _, lines = read_lines(written(tmp_path / "s.csv", SWEEP | {"model": "7B"}))
    with pytest.raises(ConfigError, match="model='7B' is not known; allowed: 1B, 3B, or any with the columns layers"):
        answer_memory(lines, NANOTRON, (), CONFIG)
    sizes = {"layers": "32", "hidden": "4096", "ffn": "11008", "heads": "32", "kv_heads": "32", "vocab": "32000"}
    _, lines = read_lines(written(tmp_path / "s.csv", SWEEP | {"model": "7B", "tp": "8", "dp": "1"} | sizes))
    (one,) = answer_memory(lines, NANOTRON, (), CONFIG).scored
    assert one.workload.model.num_layers == 32


def test_a_file_may_name_its_gpu_and_what_trained(tmp_path: Path) -> None:
    path = written(tmp_path / "s.csv", SWEEP | {"gpu": "a100-sxm4-80gb", "family": "llm-foundry"})
    _, lines = read_lines(path)
    (one,) = answer_memory(lines, NANOTRON, (), CONFIG).scored
    assert (one.workload.gpu.name, one.workload.software.name) == ("A100-SXM4-80GB", "llm-foundry")
    _, lines = read_lines(written(tmp_path / "s.csv", SWEEP | {"gpu": "a900"}))
    with pytest.raises(ConfigError, match="a900"):
        answer_memory(lines, NANOTRON, (), CONFIG)


def test_former_logits_stay_only_where_a_microbatch_follows(tmp_path: Path) -> None:
    """Once 4 bytes for each of 2 x 4,096 x 131,072 logits, as the sweep has it with two microbatches and with one."""
    alone, followed = SWEEP | {"dp": "128", "mbs": "2"}, SWEEP | {"dp": "64", "mbs": "2"}
    _, lines = read_lines(written(tmp_path / "s.csv", alone, followed))
    answer = answer_memory(lines, NANOTRON, (), CONFIG)
    first, second = (one.estimate.allocated_gib for one in answer.scored)
    assert second - first == pytest.approx(4 * 2 * 4096 * 131_072 / GIB)


def test_a_fit_recovers_the_numbers_that_memory_was_made_with(tmp_path: Path) -> None:
    layouts = [{"mbs": str(n), "tp": str(tp), "dp": str(8 // tp)} for n in (1, 2, 4, 8) for tp in (1, 2, 8)]
    rows = [SWEEP | layout | {"model": model} for layout in layouts for model in ("1B", "3B")]
    workloads, true = MeasuredWorkloads((), CONFIG), {"kept_excess": 1.4, "workspace_gib": 0.9}
    made = []
    for row in rows:
        _, lines = read_lines(written(tmp_path / "s.csv", row))
        workload = with_numbers(workload_of(memory_row(lines[0], NANOTRON), workloads), true)
        made.append(row | {"gpu_memory_gb": str(estimate_memory(workload).allocated_gib)})
    _, lines = read_lines(written(tmp_path / "s.csv", *made))
    parsed = [memory_row(line, NANOTRON) for line in lines]
    found = fit_memory([(row, workload_of(row, workloads)) for row in parsed])
    assert found == pytest.approx(true, rel=0.02)


def test_a_profile_keeps_all_but_its_numbers_of_memory() -> None:
    text = "# software\nname: some\ntraffic: 1.0 # why\nkept_excess: 1.0\n"
    found = documented(text, {"kept_excess": 1.5, "workspace_gib": 0.25}, "3 rows")
    assert found.splitlines() == [
        "# software",
        "# measured memory: 3 rows",
        "name: some",
        "traffic: 1.0 # why",
        "kept_excess: 1.5 # [fit to measured memory]",
        "workspace_gib: 0.25 # [fit to measured memory]",
    ]
    assert documented(found, {"kept_excess": 1.5, "workspace_gib": 0.25}, "3 rows") == found


def test_validate_prints_one_object_with_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "m.csv", GPT | {"group": "gpt"}, GPT | {"group": "t5"})
    assert main(["validate", "--reference", str(path), "--json", "--config-dir", str(CONFIG)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "memory"
    assert answer["memory_mape_pct"] == pytest.approx(abs(answer["rows"][0]["error_pct"]))
    (row,) = answer["rows"]
    parts = row["parts_gib"]
    assert sum(parts.values()) - parts["communicators"] - parts["reserve"] == pytest.approx(row["estimated_gib"])
    assert [refusal["row"] for refusal in answer["refused"]] == [3]


def test_other_files_are_no_memory() -> None:
    assert format_of(["family", "dp", "iteration_time_s"]) is None
