"""Successive linear programs against optima that are known, and against a search of a grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.evidence.frontiers.slp import LEAST_GAIN, Terms, minimise

NO_MARGINS = np.zeros(0)
WIDE = np.full(1, -9.0), np.full(1, 9.0)


@settings(max_examples=20)
@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=9))
def test_the_place_of_least_absolute_errors_is_the_median(values):
    """As many odd or even as there are, no place has a smaller sum of distances than their median."""
    data = np.array(values)
    found = minimise(lambda x: Terms(x - data, NO_MARGINS), np.zeros(1), *WIDE, steps=30)
    assert np.abs(found - data).sum() <= np.abs(np.median(data) - data).sum() + LEAST_GAIN * len(data)


def test_a_margin_that_outweighs_the_error_limits_a_variable():
    def terms(x, weight):
        return Terms(x - 0.5, weight * (0.2 - x))

    for weight, expected in ((2.0, 0.2), (0.5, 0.5)):
        found = minimise(lambda x, w=weight: terms(x, w), np.zeros(1), *WIDE, steps=30)
        assert found == pytest.approx([expected], abs=0.01)


def test_it_stays_in_its_box():
    found = minimise(
        lambda x: Terms(x - 5.0, NO_MARGINS), np.zeros(2), np.full(2, -1.0), np.array([0.3, 0.7]), steps=30
    )
    assert found == pytest.approx([0.3, 0.7])


def test_it_follows_a_bent_valley_with_a_kink():
    """Errors that are not linear in the variables; least at (0.8, 0.64), where both vanish."""

    def terms(x):
        return Terms(np.array([3 * (x[1] - x[0] ** 2), x[0] - 0.8]), NO_MARGINS)

    found = minimise(terms, np.array([-0.5, 0.5]), np.full(2, -2.0), np.full(2, 2.0), steps=60)
    grid = np.linspace(-1, 1, 81)
    best = min(terms(np.array([a, b])).objective for a in grid for b in grid)
    assert terms(found).objective <= best + 0.02


def test_it_stays_where_it_ended():
    data = np.array([0.1, 0.2, 0.4])

    def terms(x):
        return Terms(np.exp(x) - 1 - data, NO_MARGINS)

    once = minimise(terms, np.zeros(1), *WIDE, steps=30)
    assert minimise(terms, once, *WIDE, steps=30) == pytest.approx(once, abs=1e-12)
