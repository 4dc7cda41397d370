import pytest
from helpers.builders import a100, graphs
from hypothesis import given
from hypothesis import strategies as st

from kareus.frontier.compose import Option
from kareus.frontier.microbatch import ExecutionCost, Makeup, Point, frontier, overlap_makeup, overlap_points
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Batch, Direction
from kareus.profile.programs import Execution, StageShape
from kareus.schedule.records import Choice

GPU = a100()
INNER = StageShape(layers=3, first=False, last=False)


def makeup(direction, *, recomputation=Recomputation.STAGE, shape=INNER):
    both = graphs()
    return overlap_makeup(both[Batch.NANOBATCH], both[Batch.MICROBATCH], shape, direction, recomputation=recomputation)


def option(partition, time_s, energy_j):
    return Option(time_s=time_s, energy_j=energy_j, choice=Choice(partition=partition, sm_count=3, launch="norm"))


def test_a_forward_has_each_partition_twice_a_block_inside():
    """A.1 B.1 A.2 B.2 over 3 blocks is 12 segments; the first runs alone, and the last collective too."""
    found = makeup(Direction.FORWARD)
    assert dict(found.partitions) == {"forward-attention-allreduce": 5, "forward-mlp-allreduce": 6}
    assert dict(found.edges) == {"forward-attention-alone": 1, "forward-allreduce-alone": 1}


def test_a_checkpointed_backward_has_recomputed_partitions_too():
    found = makeup(Direction.BACKWARD)
    assert dict(found.partitions) == {
        "forward-attention-allreduce": 5,
        "forward-mlp-allreduce": 6,
        "backward-mlp-allreduce": 6,
        "backward-attention-allreduce": 6,
    }
    assert dict(found.edges) == {"forward-attention-alone": 1, "backward-allreduce-alone": 1}


def test_an_uncheckpointed_backward_starts_with_its_own_segment():
    found = makeup(Direction.BACKWARD, recomputation=Recomputation.NONE)
    assert dict(found.partitions) == {"backward-mlp-allreduce": 5, "backward-attention-allreduce": 6}
    assert dict(found.edges) == {"backward-mlp-alone": 1, "backward-allreduce-alone": 1}


def test_the_last_stage_adds_the_head():
    found = makeup(Direction.FORWARD, shape=StageShape(layers=3, first=False, last=True))
    assert found.outer["forward-head"] == 1


def test_a_point_sums_its_parts_and_adds_what_isolation_misses():
    parts = Makeup(partitions={"p": 4}, edges={"e": 2}, outer={"o": 1})
    costs = {"e": {900: ExecutionCost(0.005, 1.0)}, "o": {900: ExecutionCost(0.002, 0.5)}}
    (point,) = overlap_points(parts, {"p": {900: (option("p", 0.01, 3.0),)}}, costs, GPU)
    c = GPU.coefficients
    missed = 1 + c.isolation_overhead
    assert point.time_s == pytest.approx((4 * 0.01 + 2 * 0.005) * missed + 0.002 + c.instruction_overhead_s)
    fixed_j = c.instruction_overhead_s * GPU.blocking_power_w
    assert point.energy_j == pytest.approx((4 * 3.0 + 2 * 1.0) * missed + 0.5 + fixed_j)
    assert (point.execution, point.frequency_mhz) == (Execution.OVERLAP, 900)


def test_a_frequency_not_measured_for_every_partition_is_unused():
    parts = Makeup(partitions={"p": 1, "q": 1}, edges={}, outer={})
    options = {
        "p": {900: (option("p", 1, 1),), 1200: (option("p", 1, 1),)},
        "q": {1200: (option("q", 1, 1),), 1410: (option("q", 1, 1),)},
    }
    assert {p.frequency_mhz for p in overlap_points(parts, options, {}, GPU)} == {1200}


points = st.lists(
    st.builds(
        Point,
        execution=st.sampled_from(Execution),
        frequency_mhz=st.just(1410),
        time_s=st.integers(1, 9).map(float),
        energy_j=st.integers(1, 900).map(float),
    ),
    min_size=1,
    max_size=12,
)


@given(points)
def test_the_frontier_of_a_union_is_no_worse_than_any_member(points):
    kept = frontier(points, 85.0)
    for point in points:
        effective_j = point.energy_j - 85.0 * point.time_s
        assert any(k.time_s <= point.time_s and k.energy_j - 85.0 * k.time_s <= effective_j for k in kept)
