import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.frontiers.compose import MOST_POINTS, Option, RepeatedPartition, compose, effective
from kareus.pareto import pareto_front
from kareus.schedule.records import Choice

POWER_W = 85.0


def option(name: str, number: int, time_s: float, energy_j: float) -> Option:
    return Option(time_s=time_s, energy_j=energy_j, choice=Choice(partition=name, sm_count=number, launch="norm"))


def part(name: str, multiplicity: int, costs: list[tuple[int, int]]) -> RepeatedPartition:
    return RepeatedPartition(
        multiplicity=multiplicity, options=tuple(option(name, i, t, 100.0 * e) for i, (t, e) in enumerate(costs))
    )


costs = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5)
parts = st.lists(st.tuples(st.integers(1, 30), costs), min_size=1, max_size=4).map(
    lambda drawn: [part(f"p{i}", n, c) for i, (n, c) in enumerate(drawn)]
)


def enumerated(parts: list[RepeatedPartition]) -> np.ndarray:
    """Algorithm 2 of the paper: every combination, summed."""
    combinations = itertools.product(*(p.options for p in parts))
    return np.array(
        [
            np.sum(
                [(p.multiplicity * o.time_s, p.multiplicity * o.energy_j) for p, o in zip(parts, c, strict=True)],
                axis=0,
            )
            for c in combinations
        ]
    )


@given(parts)
def test_the_composed_frontier_is_that_of_the_cartesian_product(parts):
    composed = compose(parts, POWER_W)
    found = effective(np.array([(c.time_s, c.energy_j) for c in composed]), POWER_W)
    assert found == pytest.approx(pareto_front(effective(enumerated(parts), POWER_W)))


@given(parts)
def test_a_composition_costs_what_its_choices_cost(parts):
    for composed in compose(parts, POWER_W):
        assert [c.partition for c in composed.choices] == [f"p{i}" for i in range(len(parts))]
        chosen = [p.options[c.sm_count] for p, c in zip(parts, composed.choices, strict=True)]
        assert composed.time_s == sum(p.multiplicity * o.time_s for p, o in zip(parts, chosen, strict=True))
        assert composed.energy_j == sum(p.multiplicity * o.energy_j for p, o in zip(parts, chosen, strict=True))


def test_a_part_without_options_leaves_nothing():
    assert compose([part("p", 1, [(1, 1)]), RepeatedPartition(multiplicity=1, options=())], POWER_W) == []


def test_a_point_that_total_energy_would_prune_is_kept():
    # Slower and no cheaper in total, but cheaper once waiting is charged for: 2 s x 85 W more time for 100 J more.
    fast, slow = (1, 3), (3, 4)
    composed = compose([part("p", 1, [fast, slow])], POWER_W)
    assert [c.time_s for c in composed] == [1, 3]


def test_a_frontier_of_all_combinations_is_thinned():
    """Waiting at more power than running costs makes all sums non-dominated: 12 parts of 40 options, 40^12 of them."""
    options = [(1 + n / 97, 10.0 + n / 97) for n in range(40)]
    parts = [
        RepeatedPartition(multiplicity=m, options=tuple(option("p", n, t, e) for n, (t, e) in enumerate(options)))
        for m in range(3, 15)
    ]
    found = compose(parts, blocking_power_w=100.0)
    assert 2 <= len(found) <= MOST_POINTS
    times_s = [point.time_s for point in found]
    assert times_s[0] == pytest.approx(sum(range(3, 15)) * options[0][0])
    assert times_s[-1] == pytest.approx(sum(range(3, 15)) * options[-1][0])


def test_what_is_thinned_says_so():
    """Running draws less than waiting, so that the slower an option is, the less it costs."""
    options = [(t, 0.4 * t) for t in (1.0, 1.1, 1.3, 1.7, 2.5, 4.1, 7.3)]
    many = [
        RepeatedPartition(
            multiplicity=3**i, options=tuple(option(f"p{i}", n, t, e) for n, (t, e) in enumerate(options))
        )
        for i in range(5)
    ]
    assert all(point.is_thinned for point in compose(many, POWER_W))
    assert not any(point.is_thinned for point in compose(many[:2], POWER_W))


def test_errors_of_partitions_add_up_as_independent_ones():
    uncertain = [
        RepeatedPartition(
            multiplicity=n,
            options=(replace(option(f"p{n}", 1, 1.0, 100.0), time_error_s=error_s, energy_error_j=100 * error_s),),
        )
        for n, error_s in ((4, 0.01), (3, 0.02))
    ]
    (point,) = compose(uncertain, POWER_W)
    assert point.time_error_s == pytest.approx(math.hypot(4 * 0.01, 3 * 0.02))
    assert point.energy_error_j == pytest.approx(100 * math.hypot(4 * 0.01, 3 * 0.02))
