"""Reading measured iterations, and the workloads that they ran."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.iterations import HEADER, LLAMA, LLAMA_LINE

from kareus.cli import main
from kareus.errors import ArtifactError, RefusedWorkloadError
from kareus.fidelity.iterations.rows import has_iterations, read_iterations, read_usable_iterations
from kareus.fidelity.iterations.workloads import IterationSubjects, layers_of, software_of
from kareus.fidelity.lines import read_lines
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Sharding
from kareus.pipeline.config import PipelineSchedule


def _read(tmp_path: Path, line: str):
    path = tmp_path / "iterations.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    header, lines = read_lines(path)
    assert has_iterations(header)
    return read_iterations(lines, path)


def test_a_row_has_the_values_of_its_columns(tmp_path):
    (row,) = _read(tmp_path, LLAMA_LINE)
    assert row == LLAMA
    assert row.gpus == 512


def test_a_text_that_is_not_known_is_named_with_its_line(tmp_path):
    with pytest.raises(ArtifactError, match=r"line 2: norm='batchnorm' is not known; allowed: rmsnorm, layernorm"):
        _read(tmp_path, LLAMA_LINE.replace("rmsnorm", "batchnorm"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("swiglu", "geglu", "mlp='geglu' is not known; allowed: swiglu, gelu, squared-relu."),
        ("rope", "none", "position='none' is not known; allowed: rope, learned, alibi."),
        ("bf16,none", "bf16,block", "recompute='block' is not known; allowed: none, selective, full."),
        ("flash,4,8,8,2", "flash3,4,8,8,2", "attention='flash3' is not known; allowed: flash, unfused."),
        ("flash,4,8,8,2", "flash,4,8,8,", "cp='': must be a number above 0."),
        ("bf16", "fp4", "precision='fp4' is not known; allowed: bf16, fp16, fp8."),
        (",true,", ",yes,", "sequence_parallel='yes' is not known; allowed: true, false."),
    ],
)
def test_a_row_that_cannot_be_used_is_refused(tmp_path, old, new, said):
    assert old in LLAMA_LINE
    path = tmp_path / "iterations.csv"
    path.write_text(f"{HEADER}\n{LLAMA_LINE.replace(old, new)}\n{LLAMA_LINE}\n")
    lines = read_lines(path)[1]
    rows, (refused,) = read_usable_iterations(lines, path)
    assert rows == [replace(LLAMA, line=3)]
    assert (refused.line, refused.reason) == (2, f"{path}: line 2: {said}")
    with pytest.raises(ArtifactError, match="line 2: "):
        read_usable_iterations(lines[:1], path)


def test_switches_may_have_letters_of_any_case(tmp_path):
    (row,) = _read(tmp_path, LLAMA_LINE.replace("true", "True").replace("false", "FALSE"))
    assert row == LLAMA


def test_a_column_without_a_name_ends_the_file(tmp_path):
    path = tmp_path / "iterations.csv"
    path.write_text(f"{HEADER.replace('recompute', 'checkpoints')}\n{LLAMA_LINE}\n")
    with pytest.raises(ArtifactError, match="line 2: no column recompute; complete the file"):
        read_usable_iterations(read_lines(path)[1], path)


def test_embedding_and_head_take_the_place_of_blocks():
    subject = IterationSubjects((), CONFIG).of(LLAMA)
    assert subject.workload.parallelism.layers_per_stage == (15, 16, 16, 16, 16, 16, 16, 15)


def test_layers_that_nothing_divides_are_refused():
    subjects = IterationSubjects((), CONFIG)
    with pytest.raises(RefusedWorkloadError, match="layers=127: 8 stages of 8 chunks cannot share them"):
        subjects.of(replace(LLAMA, layers=127))


def test_stages_without_chunks_may_differ():
    model = IterationSubjects((), CONFIG).of(LLAMA).workload.model
    assert sum(layers_of(replace(LLAMA, layers=31, chunks=1), model)) == 31


def test_a_row_decides_schedule_sharding_and_vocabulary():
    subject = IterationSubjects((), CONFIG).of(
        replace(LLAMA, vocab=50257, tp=4, sharding="fsdp", cp=1, chunks=1, pp=1, layers=8)
    )
    workload = subject.workload
    assert workload.pipeline.schedule is PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    assert workload.parallelism.sharding is Sharding.FULL
    assert workload.model.vocab_size == 50688  # a multiple of 4 x 128


def test_a_pipeline_gathers_weights_once_an_iteration():
    found = IterationSubjects((), CONFIG).of(replace(LLAMA, sharding="fsdp"))
    assert found.workload.parallelism.sharding is Sharding.OPTIMIZER


def test_traces_neither_recompute_nor_pad_the_vocabulary():
    row = replace(LLAMA, family="vtrain-single", recompute="full", vocab=50257, tp=2, cp=1, chunks=1, pp=1, layers=8)
    workload = IterationSubjects((), CONFIG).of(row).workload
    assert workload.recomputation is Recomputation.NONE
    assert workload.model.vocab_size == 50256
    assert IterationSubjects((), CONFIG).of(replace(row, family="vtrain-single-2")).workload == workload
    run = IterationSubjects((), CONFIG).of(replace(row, family="vtrain-multi")).workload
    assert run.recomputation is Recomputation.FULL


def test_software_follows_the_family_and_else_the_columns():
    assert software_of(LLAMA) == "nemo"
    assert software_of(replace(LLAMA, family="vtrain-single")) == "vtrain"
    assert software_of(replace(LLAMA, family="vtrain-multi")) == "megatron-deepspeed-2022"
    unknown = replace(LLAMA, family="elsewhere")
    assert software_of(replace(unknown, attention="unfused")) == "megatron-2022"
    assert software_of(replace(unknown, sharding="fsdp", compiled=True)) == "torchtitan"
    assert software_of(replace(unknown, sharding="fsdp")) == "torchtitan-eager"
    assert software_of(replace(LLAMA, family="torchtitan-2025")) == "torchtitan-eager"
    assert software_of(replace(LLAMA, family="torchtitan-2025", compiled=True)) == "torchtitan"
    assert software_of(replace(unknown, sharding="fsdp", position="alibi")) == "llm-foundry"


def test_predict_takes_other_software_and_no_plan_does(capsys):
    overrides = ["model=qwen3-1.7b", "parallelism.pp=1", "recomputation=none", "microbatch_size=1"]
    config = ["--config-dir", str(CONFIG)]
    assert main(["predict", *overrides, "software=megatron-2022", "--json", *config]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workload"].endswith(", megatron-2022")
    assert found["host_s"] > 0
    assert main(["predict", *overrides, "software=kareus", *config]) == 2
    assert "leave it out" in capsys.readouterr().err
    assert main(["resolve", *overrides, "software=nemo", *config]) == 2


def test_predict_refuses_what_no_software_can_run(capsys):
    overrides = ["model=qwen3-1.7b", "parallelism.pp=1", "microbatch_size=100000", "software=nemo"]
    assert main(["predict", *overrides, "--config-dir", str(CONFIG)]) == 2
    printed = capsys.readouterr()
    assert "out of memory" in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out
