import dataclasses

import pytest
from test_memory import workload

from kareus.errors import RefusedWorkloadError
from kareus.workload.memory import GIB, captured_gib, check_captured_memory, stage_memory

HIDDEN = 2 * 8 * 4096 * 3072
"""Bytes of the hidden states of a microbatch of the default workload."""


def test_the_head_no_longer_takes_the_place_of_the_blocks() -> None:
    default = workload()
    for stage, in_flight in ((0, 2), (1, 1)):
        eager = stage_memory(default, stage)
        extra_gib = min(eager.blocks_gib, eager.head_gib) + (in_flight + 2) * HIDDEN / GIB
        assert captured_gib(default, stage) == pytest.approx(eager.total_gib + extra_gib)


def test_replicas_run_a_microbatch_of_each_chunk_outside_of_the_pool() -> None:
    alone, replicated = workload(), workload("parallelism.dp=2")
    one, two = (stage_memory(each, 0) for each in (alone, replicated))
    grown = captured_gib(replicated, 0) - captured_gib(alone, 0)
    eager = one.in_flight_gib / 2 + one.blocks_gib  # of two microbatches in flight, what one keeps
    assert grown == pytest.approx(eager + two.total_gib - one.total_gib)


def test_a_pool_that_does_not_fit_is_refused_in_one_line() -> None:
    full = dataclasses.replace(workload(), memory_reserve_gib=30.0)
    with pytest.raises(RefusedWorkloadError, match=r"--cuda-graphs: out of memory, needs .* GiB on stage [01]") as said:
        check_captured_memory(full)
    assert "\n" not in str(said.value)
