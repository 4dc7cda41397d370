"""Pareto sets and hypervolumes against moocore, and which plans are kept where floats differ by rounding."""

import moocore
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from kareus.pareto import as_fast_s, hypervolume, hypervolume_improvement, pareto_front, pareto_mask, pareto_order

# A coarse grid makes ties and repeated points common.
values = st.integers(0, 12).map(lambda n: n / 4)
points = st.integers(1, 25).flatmap(lambda n: npst.arrays(np.float64, (n, 2), elements=values))
reference = np.array([2.5, 2.25])


def dominates(one, other):
    return all(one <= other) and any(one < other)


@given(points)
def test_the_mask_keeps_nondominated_and_first_of_equals(points):
    mask = pareto_mask(points)
    for i, point in enumerate(points):
        dominated = any(dominates(other, point) for other in points)
        repeated = any(np.array_equal(earlier, point) for earlier in points[:i])
        assert mask[i] == (not dominated and not repeated)


@given(points)
def test_the_mask_agrees_with_moocore(points):
    assert np.array_equal(pareto_mask(points), moocore.is_nondominated(points, keep_weakly=False))


@given(points)
def test_the_front_rises_in_time_and_falls_in_energy(points):
    front = pareto_front(points)
    assert (np.diff(front[:, 0]) > 0).all()
    assert (np.diff(front[:, 1]) < 0).all()


@given(points, st.randoms(use_true_random=False))
def test_plans_are_kept_as_if_rounding_were_not_whatever_their_order(points, random):
    points += 0.5  # a share of zero is zero
    shuffled = points[random.sample(range(len(points)), len(points))]
    shuffled = shuffled * (1 + 1e-11 * np.array([[random.uniform(-1, 1) for _ in range(2)] for _ in shuffled]))
    kept = shuffled[pareto_order(list(map(tuple, shuffled)))]
    assert kept == pytest.approx(pareto_front(points), rel=1e-10)


def test_a_plan_that_is_faster_by_rounding_alone_is_not_kept():
    """By 18 ps, for 7.4 % more energy."""
    assert pareto_order([(4.56 - 18e-12, 21.78e3), (4.56, 20.28e3), (4.7, 18e3)]) == [1, 2]
    assert pareto_order([(4.56 - 1e-6, 21.78e3), (4.56, 20.28e3)]) == [0, 1]
    assert pareto_order([]) == []


def test_plans_within_three_thousandths_are_as_fast():
    assert as_fast_s([5.0, 4.0]) == pytest.approx(4.012)


@given(points)
def test_the_hypervolume_is_that_of_moocore(points):
    assert hypervolume(points, reference) == pytest.approx(moocore.hypervolume(points, ref=reference), abs=1e-12)


@given(points, points)
def test_the_closed_form_equals_the_hypervolume_difference(points, candidates):
    before = moocore.hypervolume(points, ref=reference)
    expected = [moocore.hypervolume(np.vstack((points, c)), ref=reference) - before for c in candidates]
    assert hypervolume_improvement(candidates, points, reference) == pytest.approx(expected, abs=1e-12)


def test_improvement_beyond_the_reference_is_a_rectangle():
    far = np.array([[3.0, 3.0]])
    assert hypervolume_improvement(np.array([[1.5, 1.25], [2.5, 0.0]]), far, reference) == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("bad", [np.array([[np.nan, 1.0]]), np.zeros(3), np.zeros((2, 3))])
def test_what_is_no_set_of_points_is_refused(bad):
    with pytest.raises(ValueError, match=r"expected points of shape|NaN"):
        pareto_mask(bad)


@pytest.mark.parametrize("bad", [np.array([[1.0, np.nan]]), np.zeros((2, 3))])
def test_what_is_no_set_of_candidates_is_refused(bad):
    with pytest.raises(ValueError, match=r"expected points of shape|NaN"):
        hypervolume_improvement(bad, np.array([[1.0, 1.0]]), reference)
