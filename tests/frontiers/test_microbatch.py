import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.frontiers.compose import Option
from kareus.frontiers.makeup import ExecutionCost, Makeup
from kareus.frontiers.microbatch import Point, frontier, overlap_points
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice

WAITING_W = 85.0


def option(partition, time_s, energy_j):
    return Option(time_s=time_s, energy_j=energy_j, choice=Choice(partition=partition, sm_count=3, launch="norm"))


def test_a_point_sums_its_parts_and_what_isolation_misses():
    parts = Makeup(partitions={"p": 4}, edges={"e": 2}, outer={"o": 1})
    costs = {"e": {900: ExecutionCost(0.005, 1.0)}, "o": {900: ExecutionCost(0.002, 0.5)}}
    missed = {900: ExecutionCost(0.01, 2.0)}
    (point,) = overlap_points(parts, {"p": {900: (option("p", 0.01, 3.0),)}}, costs, missed, WAITING_W)
    assert point.time_s == pytest.approx(4 * 0.01 + 2 * 0.005 + 0.002 + 0.01)
    assert point.energy_j == pytest.approx(4 * 3.0 + 2 * 1.0 + 0.5 + 2.0)
    assert (point.execution, point.frequency_mhz) == (Execution.OVERLAP, 900)


def test_doubt_about_what_isolation_misses_is_doubt_about_the_point():
    own, options = Makeup(partitions={"p": 4}, edges={}, outer={}), {"p": {900: (option("p", 0.01, 3.0),)}}
    missed = {900: ExecutionCost(0.01, 2.0, 3e-4, 0.2)}
    (point,) = overlap_points(own, options, {}, missed, WAITING_W)
    assert (point.time_error_s, point.energy_error_j) == (pytest.approx(3e-4), pytest.approx(0.2))


def test_a_frequency_not_measured_for_every_partition_is_unused():
    parts = Makeup(partitions={"p": 1, "q": 1}, edges={}, outer={})
    options = {
        "p": {900: (option("p", 1, 1),), 1200: (option("p", 1, 1),)},
        "q": {1200: (option("q", 1, 1),), 1410: (option("q", 1, 1),)},
    }
    missed = {mhz: ExecutionCost(0.0, 0.0) for mhz in (900, 1200, 1410)}
    assert {p.frequency_mhz for p in overlap_points(parts, options, {}, missed, WAITING_W)} == {1200}


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
    kept = frontier(points, WAITING_W)
    for point in points:
        effective_j = point.energy_j - WAITING_W * point.time_s
        assert any(k.time_s <= point.time_s and k.energy_j - WAITING_W * k.time_s <= effective_j for k in kept)


def limited(mhz, time_s, energy_j, error=0.01, *, is_power_limited=True):
    return Point(
        execution=Execution.SEQUENTIAL,
        frequency_mhz=mhz,
        time_s=time_s,
        energy_j=energy_j,
        time_error_s=error * time_s,
        energy_error_j=error * energy_j,
        is_power_limited=is_power_limited,
    )


def test_clocks_that_the_power_limit_makes_alike_are_merged_into_the_lowest():
    """Both are on the Pareto frontier, by noise; the third clock can be told apart."""
    alike = [limited(1410, 1.000, 300.5), limited(1380, 1.001, 300.2), limited(1200, 1.1, 250.0)]
    assert [p.frequency_mhz for p in frontier(alike, WAITING_W)] == [1380, 1200]
    told_apart = [limited(p.frequency_mhz, p.time_s, p.energy_j, 1e-4) for p in alike]
    assert len(frontier(told_apart, WAITING_W)) == 3
    reached = [limited(p.frequency_mhz, p.time_s, p.energy_j, is_power_limited=False) for p in alike]
    assert len(frontier(reached, WAITING_W)) == 3
