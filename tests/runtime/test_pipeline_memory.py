"""What a pipeline holds is that of the microbatches in flight, however many an iteration has."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.builders import small_model
from helpers.cpu_pipelines import make_pipeline, run_iteration
from helpers.memory import Alive
from helpers.trainings import tiny_workload
from helpers.worlds import gloo_groups, spawn

from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.graph.recomputation import Recomputation
from kareus.workload.activation_memory import kept_bytes
from kareus.workload.config import Workload
from kareus.workload.pipelining import most_in_flight

NUMBERS = (1, 2, 6)
"""Of microbatches of an iteration."""
WIDE = small_model(
    name="wide", hidden_size=128, intermediate_size=256, num_layers=2, head_dim=64, num_key_value_heads=2, vocab_size=64
)


def workload_of(microbatches: int) -> Workload:
    return tiny_workload(
        pp=2,
        model=WIDE,
        recomputation=Recomputation.NONE,
        microbatch_size=2,
        sequence_length=64,
        num_microbatches=microbatches,
    )


def peak_bytes(rank: int, workload: Workload) -> int:
    """Most bytes at once of what an iteration makes: all but weights and their gradients."""
    pipeline = make_pipeline(rank, workload, gloo_groups(rank, workload.parallelism))
    before = [t for t in gc.get_objects() if isinstance(t, torch.Tensor)]
    with Alive(before) as alive:
        run_iteration(pipeline, workload, rank)
    return alive.most_bytes


def measure(rank: int, folder: Path) -> None:
    peaks = [peak_bytes(rank, workload_of(number)) for number in NUMBERS]
    (folder / f"stage-{rank}").write_text(" ".join(map(str, peaks)))


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the peaks of two stages."""
    folder = tmp_path_factory.mktemp("peaks")
    spawn(2, measure, folder, folder)
    return folder


@pytest.mark.parametrize("stage", [0, 1])
def test_more_microbatches_than_are_in_flight_need_no_more(
    peaks: Path, stage: int, record_property: Callable[[str, object], None]
) -> None:
    """The first stage holds what a second microbatch keeps, and no third; one message may wait, one be on its way."""
    found = [int(peak) for peak in (peaks / f"stage-{stage}").read_text().split()]
    workloads = [workload_of(number) for number in NUMBERS]
    kept, _ = (FP32_BYTES // BF16_BYTES * size for size in kept_bytes(workloads[0], 1, 2 * 64))
    in_flight = [most_in_flight(workload, stage) for workload in workloads]
    message = FP32_BYTES * 2 * 64 * WIDE.hidden_size
    record_property("peak_bytes", found)
    for peak, number in zip(found[1:], in_flight[1:], strict=True):
        assert peak - found[0] <= (number - in_flight[0]) * kept + 2.5 * message
