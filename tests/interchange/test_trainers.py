"""A file of each trainer, as its users write them, to a prediction, to a workload file, and back to the trainer."""

import json
import shlex
from pathlib import Path

import pytest
from helpers.builders import CONFIG

from kareus.artifacts.records import leaves, to_plain
from kareus.cli import main
from kareus.export.layouts import MODEL_FIELDS
from kareus.interchange.reading import read_training
from kareus.interchange.table import trainer_named, trainers
from kareus.interchange.writing import LAYOUT, written
from kareus.workload.arguments import brought
from kareus.workload.overrides import replaced
from kareus.workload.resolve import resolve

FILES = Path(__file__).parent / "files"
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_layers": 32, "vocab_size": 128256}
FSDP = "torchtitan-eager"
TRAININGS = {
    "megatron-lm": (
        ["train_llama_8b.sh"],
        [],
        {
            **{f"model.{size}": number for size, number in LLAMA_8B.items()},
            "model.norm": "rmsnorm",
            "model.num_key_value_heads": 8,
            "parallelism.tp": 2,
            "parallelism.pp": 2,
            "parallelism.dp": 8,
            "parallelism.sharding": "optimizer",
            "parallelism.layers_per_stage": [16, 16],
            "pipeline.chunks": 2,
            "precision": "fp8",
            "recomputation": "selective",
            "num_microbatches": 32,
            "sequence_length": 8192,
            "software.name": "megatron-core",
            "software.gather_beside_forward": True,
            "software.stream_dropout": False,
            "training.batch_ramp": [32, 32, 1_000_000],
        },
        ["window_size"],
    ),
    "megatron-lm, YAML": (
        ["megatron_core.yaml"],
        ["gpus=32"],
        {
            "model.num_layers": 24,
            "parallelism.tp": 2,
            "parallelism.pp": 4,
            "parallelism.dp": 4,
            "parallelism.sharding": "optimizer",
            "num_microbatches": 16,
            "recomputation": "full",
        },
        [],
    ),
    "nemo, Megatron-Bridge": (
        ["bridge_run_config.yaml"],
        ["gpus=64", "gpu=h200"],
        {
            "model.num_layers": 80,
            "model.num_key_value_heads": 8,
            "parallelism.tp": 4,
            "parallelism.pp": 4,
            "parallelism.cp": 2,
            "parallelism.dp": 2,
            "pipeline.chunks": 5,
            "precision": "fp8-current",
            "num_microbatches": 64,
            "software.tensor_overlap": "userbuffers",
        },
        [],
    ),
    "nemo": (
        ["nemo_llama.yaml"],
        [],
        {
            "model.intermediate_size": 11008,
            "parallelism.tp": 2,
            "parallelism.dp": 8,
            "parallelism.sequence_parallel": True,
            "recomputation": "selective",
            "num_microbatches": 16,
        },
        [],
    ),
    "torchtitan": (
        ["titan_70b.toml"],
        [],
        {
            "model.name": "llama3.3-70b",
            "parallelism.tp": 8,
            "parallelism.dp": 8,
            "parallelism.sharding": "full",
            "microbatch_size": 8,
            "num_microbatches": 1,
            "recomputation": "full",
            "software.name": "torchtitan",
        },
        ["parallelism.enable_async_tensor_parallel"],
    ),
    "torchtitan, dumped": (
        ["titan_dump.json"],
        ["gpus=16"],
        {
            "model.name": "llama3.1-8b",
            "parallelism.tp": 2,
            "parallelism.pp": 2,
            "parallelism.dp": 4,
            "parallelism.sharding": "optimizer",
            "pipeline.chunks": 2,
            "microbatch_size": 1,
            "num_microbatches": 8,
            "training.loss_chunks": 8,
        },
        [],
    ),
    "nanotron": (
        ["nanotron_1b.yaml"],
        [],
        {
            "model.tie_embeddings": True,
            "parallelism.dp": 4,
            "parallelism.pp": 2,
            "parallelism.tp": 2,
            "parallelism.sharding": "optimizer",
            "microbatch_size": 2,
            "num_microbatches": 8,
            "software.gradient_bytes": 4,
            "software.name": "nanotron",
        },
        ["parallelism.tp_linear_async_communication"],
    ),
    "llm-foundry": (
        ["foundry_mpt.yaml"],
        ["gpus=32"],
        {
            "model.hidden_size": 2560,
            "model.intermediate_size": 10240,
            "model.positions": "alibi",
            "model.biases": False,
            "parallelism.dp": 32,
            "parallelism.sharding": "full",
            "microbatch_size": 8,
            "num_microbatches": 1,
            "recomputation": "full",
            "software.gradient_bytes": 2,
        },
        [],
    ),
    "deepspeed": (
        ["finetune.sh", "zero3.json"],
        [],
        {
            "model.name": "llama3.1-8b",
            "parallelism.dp": 8,
            "parallelism.sharding": "full",
            "microbatch_size": 2,
            "num_microbatches": 4,
            "sequence_length": 4096,
            "recomputation": "full",
            "software.name": FSDP,
            "training.offload_optimizer": 1.0,
        },
        [""],
    ),
    "axolotl": (
        ["axolotl_8b.yaml"],
        [],
        {
            "model.name": "llama3.1-8b",
            "parallelism.dp": 4,
            "parallelism.tp": 2,
            "parallelism.sharding": "full",
            "microbatch_size": 2,
            "num_microbatches": 2,
            "sequence_length": 4096,
            "software.name": FSDP,
        },
        ["plugins", "sample_packing", ""],
    ),
}
"""Files, overrides beside them, keys of the workload that they mean, and keys of what is lost ("" of the trainer)."""
SYNTAX = {"megatron-lm": "shell", "nanotron": "yaml", "torchtitan": "toml", "axolotl": "yaml"}
"""How layouts are written for a trainer."""


def workload_of(files, given):
    training = read_training([FILES / name for name in files])
    (one,) = resolve(replaced(training.overrides, with_gpu(given)), CONFIG)
    return training, one


def with_gpu(given):
    return given if any(text.startswith("gpu=") for text in given) else [*given, "gpu=h100-sxm5-80gb"]


def plain(workload):
    return {**MODEL_FIELDS, **dict(leaves(to_plain(workload)))}


def test_there_is_a_file_of_every_trainer():
    assert {name.partition(",")[0] for name in TRAININGS} == set(trainers())


@pytest.mark.parametrize("name", TRAININGS)
def test_a_file_means_a_workload(name):
    files, given, expected, lost = TRAININGS[name]
    training, one = workload_of(files, given)
    assert one.refusal is None
    values = plain(one.workload)
    assert {key: values[key] for key in expected} == expected
    assert [setting.key for setting in training.lost] == lost
    assert not training.unread


@pytest.mark.parametrize("name", TRAININGS)
def test_a_file_is_predicted_as_the_workload_file_that_is_made_of_it(name, tmp_path, capsys):
    files, given, _, lost = TRAININGS[name]
    words = [*with_gpu(given), "--config-dir", str(CONFIG)]
    paths = [str(FILES / file) for file in files]
    made = tmp_path / "made.yaml"
    assert main(["from", *paths, *words, "--output", str(made)]) == 0
    capsys.readouterr()
    told = []
    for source in (shlex.join(f"--from={path}" for path in paths), f"--from={made}"):
        assert main(["predict", *shlex.split(source), *words, "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert len(told[0].pop("left_out", [])) >= len(lost)
    assert told[0] == told[1]
    assert 0 < told[0]["mfu"] < 1


@pytest.mark.parametrize("name", [name for name in TRAININGS if name.partition(",")[0] in SYNTAX])
def test_the_workload_of_a_file_is_written_as_the_trainer_says_it(name, tmp_path):
    trainer = name.partition(",")[0]
    files, given, _, _ = TRAININGS[name]
    _, one = workload_of(files, given)
    own = written(trainer_named(trainer), plain(one.workload), one.workload.gpu.gpus_per_node, SYNTAX[trainer])
    path = tmp_path / f"written.{'sh' if SYNTAX[trainer] == 'shell' else SYNTAX[trainer]}"
    path.write_text(own.text)
    training = read_training([path])
    assert not training.unread
    (again,) = resolve([*training.overrides, "gpu=h100-sxm5-80gb"], CONFIG)
    first, second = plain(one.workload), plain(again.workload)
    unsaid = {text.partition("=")[0] for text in own.unsaid}
    assert unsaid <= {"parallelism.layers_per_stage"}  # which torchtitan and nanotron compute themselves
    assert {key: second.get(key) for key in LAYOUT if key not in unsaid} == {
        key: first.get(key) for key in LAYOUT if key not in unsaid
    }
    sizes = [key for key in first if key.startswith("model.") and key != "model.name"]
    assert {key: second[key] for key in sizes} == {key: first[key] for key in sizes}


@pytest.mark.parametrize("training", TRAININGS)
def test_what_is_printed_of_a_setting_can_be_typed_beside_the_file(training):
    names, given, _, _ = TRAININGS[training]
    files = [FILES / name for name in names]
    read = read_training(files)
    typed = [setting.words for setting in read.understood if "=" in setting.words]
    assert typed and not [text for text in typed if text.endswith(("True", "False", "None"))]
    (usual,) = resolve(brought(files, None, given)[1], CONFIG)
    for text in typed:
        (beside,) = resolve(brought(files, None, [*given, text])[1], CONFIG)
        assert beside.composed == usual.composed, text


def test_gpus_are_said_as_they_are_typed():
    words = {setting.key: setting.words for setting in read_training([FILES / "train_llama_8b.sh"]).understood}
    assert words["nproc_per_node"] == words["nnodes"] == "gpus=32"
