"""What the paper observes on real GPUs (section 3.2), on the partitions of the default workload."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.gpu_model import laws
from kareus.gpu_model.model import run_schedules
from kareus.gpu_model.overlap import slowdowns
from kareus.graph.records import Batch, Direction, OperatorKind
from kareus.partition.detect import detect_partitions
from kareus.partition.extract import extract
from kareus.workload.resolve import resolve_accepted

LOW_MHZ = range(900, 1101, 30)
TOP_MHZ = 1410
SM_COUNTS = range(3, 31, 3)


@pytest.fixture(scope="module")
def workload():
    (found,) = resolve_accepted([], CONFIG).values()
    return found


@pytest.fixture(scope="module")
def partitions(workload):
    return partitions_of(workload)


def partitions_of(workload):
    own = workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length
    found = detect_partitions(extract(*own)[Batch.NANOBATCH], recomputation=workload.recomputation)
    return {partition.name: partition for partition in found}


def times_s(gpu, partition, frequency_mhz, sm_counts=SM_COUNTS):
    """Time under every schedule at one clock; shape (SM counts, launch operators)."""
    launches = range(len(partition.operators))
    sm_count, launch = (grid.ravel() for grid in np.meshgrid(sm_counts, launches, indexing="ij"))
    clocks = np.full(len(launch), float(frequency_mhz))
    behaviour = run_schedules(gpu, partition, clocks, sm_count.astype(float), launch)
    return behaviour.time_s.reshape(len(sm_counts), len(launches))


def best(times_s):
    return np.unravel_index(np.argmin(times_s), times_s.shape)


def test_too_few_sms_expose_and_too_many_starve(workload, partitions):
    """Section 3.2.1, with the best launch operator for each number of SMs, where little computation hides much."""
    forward = [partition for partition in partitions.values() if partition.direction is Direction.FORWARD]
    assert forward
    for partition in forward:
        fastest_s = times_s(workload.gpu, partition, TOP_MHZ, range(1, 101)).min(axis=1)
        assert 0 < np.argmin(fastest_s) < len(fastest_s) - 1
        assert fastest_s[0] > fastest_s.min() < fastest_s[-1]


@pytest.fixture(scope="module", params=[[], ["parallelism.tp=4"]], ids=["default", "tp4"])
def split(request):
    (workload,) = resolve_accepted(request.param, CONFIG).values()
    return workload.gpu, partitions_of(workload)


@pytest.mark.parametrize("frequency_mhz", [1100, TOP_MHZ])
def test_a_collective_loses_more_beside_a_norm_than_a_gemm(split, frequency_mhz):
    """Section 3.2.2: every partition begins with a norm, and waiting for it to end is better on average."""
    gpu, partitions = split
    gains, clock = [], np.array([float(frequency_mhz)])
    for partition in partitions.values():
        first, *others = partition.operators
        assert (first.kind, others[0].kind) == (OperatorKind.MEMORY, OperatorKind.GEMM)
        moving = partition.collective, laws.collective_time_s(gpu, partition.collective, clock, np.array([12.0]))
        beside_norm, *beside_gemms = (
            float(slowdowns(gpu, [operator], moving, clock, 12)[1][0])
            for operator in (first, *(other for other in others if other.kind is OperatorKind.GEMM))
        )
        assert beside_norm > 1.1
        assert max(beside_gemms) - 1 < (beside_norm - 1) / 2
        fastest_s = times_s(gpu, partition, frequency_mhz)
        gains.append(1 - fastest_s[:, 1].min() / fastest_s[:, 0].min())
    assert max(gains) > 0
    assert np.mean(gains) > 0


def test_the_best_launch_operator_moves_with_the_clock(workload, partitions):
    """Section 3.2.3: computation slows down more than communication, and memory traffic not at all."""
    moves = {
        (name, sm_count)
        for name, partition in partitions.items()
        for n, sm_count in enumerate(SM_COUNTS)
        if len({int(np.argmin(times_s(workload.gpu, partition, mhz)[n])) for mhz in (*LOW_MHZ, TOP_MHZ)}) > 1
    }
    assert moves


def test_the_best_schedule_differs_between_clocks(workload, partitions):
    """Section 3.2.3: the three factors are searched together because they interact."""
    assert any(
        (times := times_s(workload.gpu, partition, mhz))[best(times_s(workload.gpu, partition, TOP_MHZ))] > times.min()
        for partition in partitions.values()
        for mhz in LOW_MHZ
    )


def test_the_best_number_of_sms_depends_on_the_launch_operator(workload, partitions):
    assert any(
        len(set(np.argmin(times_s(workload.gpu, partition, TOP_MHZ), axis=0).tolist())) > 1
        for partition in partitions.values()
    )


def test_lower_clocks_slow_computation_most(workload, partitions):
    """Why the best schedule moves."""
    gpu = workload.gpu
    for partition in partitions.values():
        gemms = [operator for operator in partition.operators if operator.kind is OperatorKind.GEMM]
        computing, communicating = (
            np.array([time_s(float(mhz)) for mhz in (*LOW_MHZ, TOP_MHZ)])
            for time_s in (
                lambda mhz, gemms=gemms: sum(laws.operator_time_s(gpu, o, mhz, gpu.sm_count) for o in gemms),
                lambda mhz, partition=partition: laws.collective_time_s(gpu, partition.collective, mhz, 12),
            )
        )
        assert (np.diff(computing / communicating) < 0).all()
        assert all(slow > fast for slow, fast in pairwise(communicating))
