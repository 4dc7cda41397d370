"""What measuring would add, as shares of the hypervolume of each sample's own frontier."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.search.posterior_samples import PosteriorSamples

MARGIN = 1.1


def area(points):
    """Area that points dominate within the unit square, counted by cells between their coordinates."""
    inside = [(x, y) for x, y in points if x < 1 and y < 1]
    xs = sorted({*(x for x, _ in inside), 1.0})
    ys = sorted({*(y for _, y in inside), 1.0})
    return sum(
        (right - left) * (top - bottom)
        for left, right in itertools.pairwise(xs)
        for bottom, top in itertools.pairwise(ys)
        if any(x <= left and y <= bottom for x, y in inside)
    )


def shares(sample, chosen):
    """Share of a sample's hypervolume that the chosen rows have, axes scaled from its ideal to its reference point."""
    front = [p for p in sample if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in sample)]
    ideal = [min(p[axis] for p in front) for axis in (0, 1)]
    reference = [MARGIN * max(p[axis] for p in front) for axis in (0, 1)]
    scaled = [tuple((p[axis] - ideal[axis]) / (reference[axis] - ideal[axis]) for axis in (0, 1)) for p in sample]
    return area([scaled[row] for row in chosen]) / area(scaled)


point = st.tuples(st.integers(1, 9).map(float), st.integers(1, 9).map(lambda n: 100.0 * n))
sample = st.lists(point, min_size=5, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(sample, min_size=1, max_size=3))
def test_picks_add_the_shares_that_counting_cells_gives(samples):
    """Three candidates are on offer, two have been measured."""
    drawn = PosteriorSamples(np.array(samples), 3, MARGIN)
    before = np.mean([shares(s, (3, 4)) for s in samples])
    assert drawn.remaining == pytest.approx(1 - before)
    picks, added = drawn.best(3)
    assert len(set(picks.tolist())) == len(picks)
    for n in range(len(picks)):
        then = [shares(s, (3, 4, *picks[: n + 1])) for s in samples]
        assert added[: n + 1].sum() == pytest.approx(np.mean(then) - before)
    assert added.sum() == pytest.approx(drawn.remaining, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(sample, min_size=1, max_size=3))
def test_the_first_pick_adds_most(samples):
    picks, added = PosteriorSamples(np.array(samples), 3, MARGIN).best(1)
    before = np.mean([shares(s, (3, 4)) for s in samples])
    most = max(np.mean([shares(s, (3, 4, n)) for s in samples]) - before for n in range(3))
    assert added.sum() == pytest.approx(most, abs=1e-9)
    assert len(picks) <= 1


def test_every_sample_counts_alike_at_any_scale():
    """Two samples gain by the second candidate what one, 1,000 times as dear, gains by the first."""
    cheap = [(1.0, 1.0), (1.0, 0.5), (1.0, 1.0)]
    dear = [(1000.0, 500.0), (1000.0, 1000.0), (1000.0, 1000.0)]
    picks, _ = PosteriorSamples(np.array([cheap, cheap, dear]), 2, MARGIN).best(1)
    assert picks.tolist() == [1]


def test_chances_are_shares_of_samples():
    first = [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)]
    second = [(1.0, 2.0), (2.0, 3.0), (0.5, 4.0)]
    assert PosteriorSamples(np.array([first, second]), 2, MARGIN).chances.tolist() == [1.0, 0.5]
