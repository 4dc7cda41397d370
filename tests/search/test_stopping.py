"""Progress of a search and when it ends, against areas counted by hand."""

import itertools

import numpy as np
import pytest
from helpers.builders import a100, graphs, search

from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.profile.measure import Measurement
from kareus.search import surrogate
from kareus.search.config import SampleSizes, Strategy
from kareus.search.dataset import Dataset
from kareus.search.features import Features
from kareus.search.informed import _Calibration
from kareus.search.prior import textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import _converged, run_search
from kareus.search.strategy import sizes_of
from kareus.search.surrogate import disagreement

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
ONE_EACH = SampleSizes(initial=1, max_rounds=9, batch=1)


@pytest.mark.parametrize("seed", range(8))
def test_hypervolume_is_scaled_to_the_worst_measurement(seed):
    """Candidates in several orders: (4 ms, 1 J), (2 ms, 2 J) and the dominated (4 ms, 2 J)."""
    costs = [(4e-3, 1.0), (2e-3, 2.0), (4e-3, 2.0)]
    config = search("random", small=ONE_EACH, medium=ONE_EACH, large=ONE_EACH)
    features = Features(np.array([(900, 6, 0), (1200, 6, 0), (1410, 6, 0)], dtype=float))
    problem = SearchProblem(PARTITION, features, textbook(a100()), config, np.random.default_rng(seed))

    def measure(candidate):
        time_s, energy_j = costs[candidate]
        return Measurement(time_s=time_s, energy_j=energy_j, duration_s=1.0)

    found = run_search(problem, measure, lambda _: pytest.fail("random measures no times alone"), 60.0)
    seen = [costs[t.candidate] for t in found.trials]
    volumes = [scaled_area(seen[: n + 1], seen[: n + 1]) for n in range(3)]
    assert [r.hypervolume for r in found.rounds] == pytest.approx(volumes)
    assert found.rounds[0].improvement is None
    for n in (1, 2):
        on_the_later_scale = scaled_area(seen[:n], seen[: n + 1])
        assert found.rounds[n].improvement == pytest.approx(volumes[n] / on_the_later_scale - 1)


def scaled_area(points, worst_of):
    """Area of one or two boxes up to 1.1 on both axes, less what they share; of a third point nothing is new."""
    scale = [max(p[axis] for p in worst_of) for axis in (0, 1)]
    corners = [(1.1 - p[0] / scale[0], 1.1 - p[1] / scale[1]) for p in points]
    best = [c for c in set(corners) if not any(d != c and d[0] >= c[0] and d[1] >= c[1] for d in corners)]
    shared = min(c[0] for c in best) * min(c[1] for c in best) if len(best) > 1 else 0.0
    return sum(width * height for width, height in best) - shared


@pytest.mark.parametrize(
    ("improvements", "ends"),
    [
        ([None], False),
        ([None, 0.0], False),
        ([None, 0.0, 0.0], True),
        ([None, 0.5, 0.0009, 0.0009], True),
        ([None, 0.001, 0.001], False),
        ([None, 0.0, 0.0018], True),
        ([None, 0.0, 0.0022], False),
    ],
)
def test_paper_ends_once_two_improvements_are_small(improvements, ends):
    assert (_converged(improvements, search()) is not None) == ends


@pytest.mark.parametrize("strategy", [Strategy.RANDOM, Strategy.EXHAUSTIVE])
def test_only_paper_ends_because_the_hypervolume_stands_still(strategy):
    assert _converged([None, 0.0, 0.0, 0.0], search(strategy.value)) is None


def test_sample_sizes_go_by_the_number_of_operators():
    config = search()
    assert [sizes_of(n, config) for n in (1, 2, 3, 4)] == [config.small, config.medium, config.medium, config.large]


def test_disagreement_does_not_depend_on_units():
    random = np.random.default_rng(0)
    features = random.random((30, 3))
    time_s, energy_j = random.random(30) + 1, random.random(30) + 1
    config = search(boost_rounds=5, ensemble_size=3)

    def found(unit_s, unit_j):
        data = Dataset(np.arange(30), time_s * unit_s, energy_j * unit_j, 0.0)
        return disagreement(features, data, features[:5], config, np.random.default_rng(1))

    assert found(1e-3, 1.0) == pytest.approx(found(1.0, 1.0), rel=1e-4)
    assert found(1.0, 1e3) == pytest.approx(found(1.0, 1.0), rel=1e-4)


def test_disagreement_is_a_standard_deviation_of_scaled_predictions(monkeypatch):
    """Members predict 1, 2, 3 and 6 for times up to 10 and energies up to 20: deviations of 1.8708 over 10 and 20."""
    members = itertools.cycle([1.0, 2.0, 3.0, 6.0])
    monkeypatch.setattr(surrogate, "_fit_predict", lambda *_: np.full(2, next(members)))
    data = Dataset(np.arange(4), np.array([1.0, 2, 10, 3]), np.array([5.0, 20, 1, 2]), 0.0)
    config = search(ensemble_size=4)
    found = disagreement(np.zeros((4, 3)), data, np.zeros((2, 3)), config, np.random.default_rng(0))
    assert found == pytest.approx(np.full(2, 3.5**0.5 * (1 / 10 + 1 / 20)))


def test_calibration_error_is_a_mean_square_of_errors():
    calibration = _Calibration()
    calibration.expect(np.zeros(3), np.full(3, 0.04))  # so that 0.05 is one standard deviation
    calibration.compare(np.array([5.0, 0.1, -0.05]), noise=0.03)
    assert calibration.error(2) == pytest.approx((2**2 + 1**2) / 2)
