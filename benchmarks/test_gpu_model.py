"""Speed of the GPU model: `pytest benchmarks/test_gpu_model.py` (extra `bench`)."""

from pathlib import Path

import numpy as np
import pytest

from kareus.gpu_model.model import run_schedules
from kareus.graph.records import Batch
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.schedule.space import search_space
from kareus.workload.resolve import resolve_accepted

MOST_SECONDS = 0.2
"""Asked for: 720 schedules on one core, so that an exhaustive search stays usable as a yardstick."""


@pytest.fixture(scope="module")
def workload():
    """The default workload."""
    (found,) = resolve_accepted([], Path(__file__).parents[1] / "config").values()
    return found


def test_all_schedules_of_the_largest_partition(benchmark, workload):
    """What an exhaustive search evaluates."""
    own = workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length
    found = detect_partitions(extract(*own)[Batch.NANOBATCH], recomputation=workload.recomputation)
    spaces = {partition: search_space(partition, workload.gpu, workload.space) for partition in found}
    partition = max(spaces, key=lambda partition: len(spaces[partition]))
    space = spaces[partition]
    columns = (
        np.array(space.frequency_mhz, dtype=np.float64),
        np.array(space.sm_count, dtype=np.float64),
        np.array([partition.operator_index(name) for name in space.launch]),
    )
    benchmark.extra_info["schedules"] = len(space)
    benchmark(run_schedules, workload.gpu, partition, *columns)
    assert benchmark.stats.stats.min * 720 / len(space) < MOST_SECONDS
