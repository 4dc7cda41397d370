"""Runs of layouts: their file, and what they are predicted to take by other numbers of the trainer."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.builders import CONFIG

import kareus
from kareus.adviser.layouts import Layout
from kareus.adviser.runs import LayoutRun, LayoutTimes, RunFailure, read_runs, runnable, runs_text
from kareus.errors import ArtifactError
from kareus.graph.recomputation import Recomputation
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.software.record import driven, with_numbers
from kareus.workload.compose import compose
from kareus.workload.config import Workload

LAYOUT = Layout(
    dp=4, pp=2, tp=2, cp=1, schedule=PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, chunks=1, microbatch_size=1,
    num_microbatches=4, recomputation=Recomputation.NONE, sharding=Sharding.OPTIMIZER, sequence_parallel=True,
)  # fmt: skip
LAYOUTS = [
    LAYOUT,
    replace(LAYOUT, pp=1, dp=8, num_microbatches=2),
    replace(LAYOUT, tp=1, dp=8, sequence_parallel=False, sharding=Sharding.NONE, num_microbatches=2),
    replace(LAYOUT, tp=4, dp=2, recomputation=Recomputation.FULL),
]


def small(*overrides: str) -> Workload:
    """A training of four blocks by a software whose passes are launched as a whole."""
    (composed,) = compose(
        [
            "model=llama3.1-8b", "model.num_layers=4", "gpu=h100-sxm5-80gb", "software=nanotron",
            "sequence_length=1024", "iteration.include_update=true", *overrides,
        ],
        CONFIG,
    )  # fmt: skip
    return composed.workload


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    runs = [
        LayoutRun(layout=LAYOUTS[0], time_s=1.25),
        LayoutRun(layout=LAYOUTS[1], failure=RunFailure.FAILED),
        LayoutRun(layout=replace(LAYOUTS[1], chunks=2), failure=RunFailure.OUT_OF_MEMORY, predicted_s=0.25),
        LayoutRun(layout=LAYOUTS[2]),
        LayoutRun(layout=LAYOUTS[3], predicted_s=0.5),
        LayoutRun(layout=replace(LAYOUT, layers_per_stage=(3, 1))),
    ]
    assert read_runs(written(tmp_path, runs_text(runs))) == runs


def test_what_a_message_prints_beside_a_margin_is_read_as_it_is(tmp_path: Path) -> None:
    text = runs_text([LayoutRun(layout=layout) for layout in LAYOUTS])
    (tmp_path / "margin").mkdir()
    indented = written(tmp_path / "margin", "".join(f"  {line}\n" for line in text.splitlines()))
    assert read_runs(indented) == read_runs(written(tmp_path, text))


def test_a_file_may_have_degrees_and_microbatches_alone(tmp_path: Path) -> None:
    path = written(tmp_path, "dp,pp,tp,microbatch_size,num_microbatches\n4,2,2,1,4\n8,2,1,1,4\n")
    first, second = (run.layout for run in read_runs(path))
    assert first == replace(LAYOUT, sharding=Sharding.NONE)
    assert not second.sequence_parallel


@pytest.mark.parametrize("text", ["oom", "OOM", " Oom "])
def test_a_run_out_of_memory_may_be_written_in_letters_of_any_case(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, f"dp,pp,tp,microbatch_size,num_microbatches,iteration_time_s\n4,2,2,1,4,{text}\n")
    (run,) = read_runs(path)
    assert (run.time_s, run.failure) == (None, RunFailure.OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp,pp,tp,microbatch_size\n1,1,1,1\n", "no column num_microbatches"),
        ("dp,pp,tp,microbatch_size,num_microbatches\n", "no rows"),
        ("dp,pp,tp,microbatch_size,num_microbatches\n1,1,x,1,1\n", "line 2: tp='x'"),
        ("dp,pp,tp,microbatch_size,num_microbatches,sharding\n1,1,1,1,1,zero\n", "sharding='zero' is not known"),
        ("dp,pp,tp,microbatch_size,num_microbatches,iteration_time_s\n1,1,1,1,1,-2\n", "iteration_time_s='-2'"),
        (
            "dp,pp,tp,microbatch_size,num_microbatches,iteration_time_s\n1,1,1,1,1,crashed\n",
            "iteration_time_s='crashed': must be a number above 0; or write oom where the run was out of memory",
        ),
        ("dp,pp,tp,microbatch_size,num_microbatches,layers_per_stage\n1,2,1,1,1,8;8\n", "layers_per_stage='8;8'"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_runs(written(tmp_path, text))


def test_a_run_that_cannot_be_predicted_is_refused_with_the_reason() -> None:
    with pytest.raises(ArtifactError, match=r"runs\.csv: .*num_layers"):
        runnable(small(), [replace(LAYOUT, pp=8, dp=1)], Path("runs.csv"))


def test_runs_are_predicted_whatever_memory_they_are_estimated_to_need() -> None:
    assert len(runnable(small("gpu.memory_gib=1"), LAYOUTS, Path("runs.csv"))) == len(LAYOUTS)


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"hidden_reduction": 0.2, "block_messages": 6.0},
        {"host_launch_s": 8e-5, "attention_slowdown": 2.5, "hidden_reduction": 1.0},
        {"network_slowdown": 4.0, "host_rank_s": 3e-4},
    ],
)
def test_predicted_times_are_those_of_the_api_for_the_same_numbers(numbers: dict[str, float]) -> None:
    """Asked one after the other, so that what is kept of one set of numbers would show in the next."""
    base = small()
    workloads = [one.workload for one in runnable(base, LAYOUTS, Path("runs.csv"))]
    times = LayoutTimes(base, workloads)
    times.of({"traffic": 1.5})
    software = with_numbers(base.software, numbers)
    found_s = times.of(numbers)
    for workload, time_s in zip(workloads, found_s, strict=True):
        own = workload.parallelism
        alike = replace(workload, software=software, gpu=driven(workload.gpu, software, own.gpus, own.pp))
        assert time_s == pytest.approx(kareus.predict(alike).time_s, rel=1e-9)
    assert times.of(numbers, [2, 0]).tolist() == [found_s[2], found_s[0]]
