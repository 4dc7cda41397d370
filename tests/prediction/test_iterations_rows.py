"""Reading measured iterations, and the workloads that they ran."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.builders import CONFIG
from helpers.iterations import HEADER, LLAMA, LLAMA_LINE

from kareus.cli import main
from kareus.errors import ArtifactError, ConfigError, RefusedWorkloadError
from kareus.evidence.validation import validate_file
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.prediction.lines import read_lines
from kareus.prediction.measured import MeasuredWorkloads, layers_of, measured_iterations, software_of
from kareus.prediction.rows import has_iterations, read_iterations, read_usable_iterations
from kareus.prediction.workload_prediction import predict
from kareus.software.record import TensorOverlap
from kareus.workload.compose import compose


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
        ("bf16,none", "bf16,block", "recompute='block' is not known; allowed: none, selective, full, fitting."),
        ("flash,4,8,8,2", "flash3,4,8,8,2", "attention='flash3' is not known; allowed: flash, unfused."),
        ("flash,4,8,8,2", "flash,4,8,,2", "tp='': must be a number above 0."),
        (
            "bf16",
            "fp4",
            "precision='fp4' is not known; allowed: fp16, bf16, fp8, fp8-current, fp8-blockwise, mxfp8, nvfp4.",
        ),
        (",true,", ",maybe,", "sequence_parallel='maybe' is not known; allowed: true, false."),
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


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("flash,4,8,8,2,", "flash,4,8,8,,", {"cp": 1}),
        (",true,", ",yes,", {}),
        (",true,", ",no,", {"sequence_parallel": False}),
        (",optimizer,", ",ddp+dist-optimizer,", {}),
        ("bf16,none", "amp_fp8,", {"precision": "fp8"}),
        ("swiglu,rmsnorm,rope", ",,", {}),
        (",126,", ",126 (of which two are empty),", {}),
    ],
)
def test_cells_of_published_tables_may_be_empty_or_have_words_of_their_own(tmp_path, old, new, changes):
    """What a Llama's blocks are follows from its name; what else is missing is what is usual."""
    assert old in LLAMA_LINE
    (row,) = _read(tmp_path, LLAMA_LINE.replace(old, new))
    assert row == replace(LLAMA, **changes)


def _of_global_batch(tmp_path, batch):
    """The Llama's line with the global batch in the place of microbatches."""
    path = tmp_path / "iterations.csv"
    cells = LLAMA_LINE.split(",")
    cells[HEADER.split(",").index("num_microbatches")] = batch
    path.write_text(f"{HEADER.replace('num_microbatches', 'global_batch_size')}\n{','.join(cells)}\n")
    header, lines = read_lines(path)
    assert has_iterations(header)
    return read_iterations(lines, path)


def test_a_global_batch_is_shared_by_the_replicas(tmp_path):
    """256 sequences, one at a time by each of four replicas, are 64 microbatches."""
    assert _of_global_batch(tmp_path, "256") == [LLAMA]


def test_a_global_batch_that_replicas_cannot_share_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"line 2: global_batch_size=258: must be a multiple of dp x .* \(4\)"):
        _of_global_batch(tmp_path, "258")


def test_switches_may_have_letters_of_any_case(tmp_path):
    (row,) = _read(tmp_path, LLAMA_LINE.replace("true", "True").replace("false", "FALSE"))
    assert row == LLAMA


def test_a_column_without_a_name_ends_the_file(tmp_path):
    path = tmp_path / "iterations.csv"
    path.write_text(f"{HEADER.replace('seq_len', 'tokens')}\n{LLAMA_LINE}\n")
    with pytest.raises(ArtifactError, match="line 2: no column seq_len; complete the file"):
        read_usable_iterations(read_lines(path)[1], path)


def test_embedding_and_head_take_the_place_of_blocks():
    workload = MeasuredWorkloads((), CONFIG).of(LLAMA)
    assert workload.parallelism.layers_per_stage == (15, 16, 16, 16, 16, 16, 16, 15)


def test_layers_that_nothing_divides_are_refused():
    workloads = MeasuredWorkloads((), CONFIG)
    with pytest.raises(RefusedWorkloadError, match="layers=127: 8 stages of 8 chunks cannot share them"):
        workloads.of(replace(LLAMA, layers=127))


def test_stages_without_chunks_may_differ():
    model = MeasuredWorkloads((), CONFIG).of(LLAMA).model
    assert sum(layers_of(replace(LLAMA, layers=31, chunks=1), model)) == 31


def test_a_row_decides_schedule_sharding_and_vocabulary():
    workload = MeasuredWorkloads((), CONFIG).of(
        replace(LLAMA, vocab=50257, tp=4, sharding="fsdp", cp=1, chunks=1, pp=1, layers=8)
    )
    assert workload.pipeline.schedule is PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    assert workload.parallelism.sharding is Sharding.FULL
    assert workload.model.vocab_size == 50688  # a multiple of 4 x 128


def test_a_pipeline_gathers_weights_once_an_iteration():
    found = MeasuredWorkloads((), CONFIG).of(replace(LLAMA, sharding="fsdp"))
    assert found.parallelism.sharding is Sharding.OPTIMIZER


def test_traces_neither_recompute_nor_pad_the_vocabulary():
    row = replace(LLAMA, family="vtrain-single", recompute="full", vocab=50257, tp=2, cp=1, chunks=1, pp=1, layers=8)
    workload = MeasuredWorkloads((), CONFIG).of(row)
    assert workload.recomputation is Recomputation.NONE
    assert workload.model.vocab_size == 50256
    assert MeasuredWorkloads((), CONFIG).of(replace(row, family="vtrain-single-2")) == workload
    run = MeasuredWorkloads((), CONFIG).of(replace(row, family="vtrain-multi"))
    assert run.recomputation is Recomputation.FULL


def test_software_follows_the_family_and_else_the_columns():
    assert software_of(LLAMA) == "megatron-core"
    assert software_of(replace(LLAMA, family="vtrain-single")) == "vtrain"
    assert software_of(replace(LLAMA, family="vtrain-multi")) == "megatron-deepspeed-2022"
    unknown = replace(LLAMA, family="elsewhere")
    assert software_of(replace(unknown, attention="unfused")) == "megatron-2022"
    assert software_of(replace(unknown, sharding="fsdp", compiled=True)) == "torchtitan"
    assert software_of(replace(unknown, sharding="fsdp")) == "torchtitan-eager"
    assert software_of(replace(LLAMA, family="torchtitan-2025")) == "torchtitan-eager"
    assert software_of(replace(LLAMA, family="torchtitan-2025", compiled=True)) == "torchtitan"
    assert software_of(replace(unknown, sharding="fsdp", position="alibi")) == "llm-foundry"


@pytest.mark.parametrize(
    ("family", "gpu", "overrides", "node_gb_per_s"),
    [
        ("llm-foundry", "a100-sxm4-40gb", (), 200.0),  # eight NICs of 25 GB/s
        ("llm-foundry", "a100-sxm4-40gb", ("gpu.node_gb_per_s=77",), 77.0),
        ("llm-foundry", "a100-sxm4-80gb", (), None),
        ("megatron", "a100-sxm4-40gb", (), None),
    ],
)
def test_measured_clusters_may_have_a_fabric_of_their_own(family, gpu, overrides, node_gb_per_s):
    (usual,) = compose([f"gpu={gpu}"], CONFIG)
    found = MeasuredWorkloads(overrides, CONFIG).of(replace(LLAMA, family=family, gpu=gpu))
    assert found.gpu.node_gb_per_s == (node_gb_per_s or usual.workload.gpu.node_gb_per_s)


def test_measured_iterations_take_no_sweeps():
    with pytest.raises(ConfigError, match=r"gpu.power_limit_w=300,700: a sweep; measured iterations take one value"):
        MeasuredWorkloads(("gpu.power_limit_w=300,700",), CONFIG).of(LLAMA)


def test_a_row_says_what_collectives_run_beside_unless_nothing_hides():
    workloads = MeasuredWorkloads((), CONFIG)
    beside, after = (workloads.of(replace(LLAMA, tp_overlap=own)).software for own in ("userbuffers", "none"))
    assert (beside.tensor_overlap, after.tensor_overlap) == (TensorOverlap.USERBUFFERS, TensorOverlap.NONE)
    traced = replace(LLAMA, family="vtrain-single", cp=1, attention="unfused")
    assert workloads.of(traced).software.tensor_overlap is TensorOverlap.NOTHING


SMALL = replace(
    LLAMA, layers=2, hidden=1024, ffn=4096, heads=8, vocab=51200, dp=2, pp=1, tp=1, cp=1, chunks=1, num_microbatches=2,
    sequence_parallel=False, seq_len=2048, tp_overlap="none",
)  # fmt: skip


def _written(tmp_path, *rows):
    """A file with these rows."""
    lines = [[str(getattr(row, name)) for name in HEADER.split(",")] for row in rows]
    path = tmp_path / "iterations.csv"
    path.write_text("\n".join([HEADER, *map(",".join, lines)]))
    return path


def test_a_validated_row_is_predicted_as_the_workload_that_it_is(tmp_path):
    """That `kareus.predict` and `kareus validate` have one predictor: the same figures to the last bit."""
    rows = [
        SMALL,
        replace(SMALL, line=3, family="llm-foundry", gpu="a100-sxm4-80gb", sharding="fsdp"),
        replace(SMALL, line=4, family="elsewhere", precision="fp8", iteration_time_s=2.0),
    ]
    path = _written(tmp_path, *rows)
    answer = validate_file("rows", path, (), CONFIG).answer
    found = list(measured_iterations(path, (), CONFIG))
    assert [row for _, row in found] == rows
    assert [one.workload for one in answer.scored] == [workload for workload, _ in found]
    for one, (workload, row) in zip(answer.scored, found, strict=True):
        assert one.predicted == predict(workload)
        assert one.error == predict(workload).time_s / row.iteration_time_s - 1


@pytest.mark.parametrize("group", ["gpu", "software"])
def test_validate_takes_no_gpu_or_software_beside_measured_iterations(tmp_path, capsys, group):
    option = {"gpu": "h100-sxm5-80gb", "software": "megatron-core"}[group]
    command = ["validate", "--reference", str(_written(tmp_path, SMALL)), "--config-dir", str(CONFIG)]
    assert main([*command, f"{group}={option}"]) == 2
    printed = capsys.readouterr()
    assert f"every measured iteration names its {group}; leave {group}=... out" in printed.err
    assert not printed.out
