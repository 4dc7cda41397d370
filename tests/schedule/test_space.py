import pytest
from helpers.builders import a100, all_reduce, gemm, graphs, memory, space
from hypothesis import given
from hypothesis import strategies as st

from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch, Direction, Partition
from kareus.schedule.config import sm_allocations
from kareus.schedule.space import bound_time_s, launch_operators, search_space


def partition(operators, collective):
    return Partition(name="p", direction=Direction.FORWARD, operators=tuple(operators), collective=collective)


def test_sm_counts_follow_the_size_of_the_group():
    """Paper, appendix on MBO hyperparameters."""
    assert sm_allocations(2, space()) == sm_allocations(3, space()) == tuple(range(1, 21))
    assert sm_allocations(4, space()) == sm_allocations(8, space()) == tuple(range(3, 31, 3))


def test_the_space_is_a_grid_of_clocks_sms_and_launches():
    mlp = graphs()[Batch.NANOBATCH].forward[1]
    candidates = search_space(partition_of(mlp, mlp.collective), a100(), space())
    different = {candidates[n] for n in range(len(candidates))}
    assert len(candidates) == len(different) == 18 * 10 * len(set(candidates.launch))
    assert set(candidates.frequency_mhz) == set(range(900, 1411, 30))


def test_launches_that_always_expose_are_left_out():
    first, second = (gemm(name, 16384, 4096, 3072) for name in ("first", "second"))
    p = partition([first, second, memory("tiny", 1024)], all_reduce(16384 * 3072))
    assert launch_operators(p, a100(), (3, 30)) == ("first", "second")


def test_a_collective_that_nothing_hides_still_starts():
    p = partition([memory("tiny", 1024)], all_reduce(16384 * 3072))
    assert launch_operators(p, a100(), (3, 30)) == ("tiny",)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 400))
def test_launches_are_kept_where_some_schedule_can_hide_them(sizes, message):
    gpu, sm_counts = a100(), (3, 15, 30)
    operators = [gemm(f"g{i}", 128 * size, 1024, 1024) for i, size in enumerate(sizes)]
    p = partition(operators, all_reduce(message * 100_000))
    least_s = p.collective.bus_bytes / (gpu.link_gb_per_s * 1e9)
    for start in range(1, len(operators)):
        hidden = any(
            sum(bound_time_s(gpu, o, f, gpu.sm_count - sm) for o in operators[start:]) >= least_s
            for f in gpu.search_frequencies.clocks_mhz
            for sm in sm_counts
        )
        assert (operators[start].name in launch_operators(p, gpu, sm_counts)) == hidden


def test_no_operator_is_faster_than_its_bound():
    gpu = a100()
    linear = gemm("linear", 16384, 4096, 3072)
    assert bound_time_s(gpu, linear, 1410, 108) == pytest.approx(2 * 16384 * 4096 * 3072 / 312e12)
