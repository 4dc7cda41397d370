"""The cost of candidates before and after measuring: moments that samples, covariances and data must agree with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.search.dataset import Dataset
from kareus.search.features import Features
from kareus.search.noise import Noise
from kareus.search.posterior import LAUNCH_CORRELATION, LEAST_DYNAMIC_W, GaussianPrior, costs

FEATURES = Features(
    np.array([(clock, sms, launch) for clock in (900, 1410) for sms in (6, 24) for launch in (0, 1)], dtype=float)
)
SIZE = len(FEATURES)
NOISE = 0.004
OF_BOTH = Noise(NOISE, 2 * NOISE)
"""Powers are noisier than times."""
STATIC_W = 60.0
NOTHING = Dataset(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), STATIC_W)


def ensemble(models=6):
    """Log times around 1 ms and log powers around 300 W."""
    drawn = np.random.default_rng(0).standard_normal((models, 2 * SIZE)) * 0.1
    return drawn + np.repeat(np.log((1e-3, 300.0)), SIZE)


def measured(candidates, time_s, power_w):
    candidates = np.array(candidates)
    times_s = np.full(len(candidates), time_s)
    return Dataset(candidates, times_s, power_w * times_s, STATIC_W)


def test_the_prior_covariance_is_that_of_the_ensemble():
    everywhere = np.arange(SIZE)
    some, none = (GaussianPrior(FEATURES, models) for models in (ensemble(), np.zeros((6, 2 * SIZE))))
    scales = (0.01, 0.02, 0.03, 0.04)
    difference = some.covariance(everywhere, scales) - none.covariance(everywhere, scales)
    assert np.allclose(difference, np.cov(ensemble().T))


def test_times_and_powers_have_residuals_of_their_own_scales():
    prior = GaussianPrior(FEATURES, ensemble())
    everywhere = np.arange(SIZE)
    scales = (0.1, 0.2, 0.3, 0.4)
    added = np.diag(prior.covariance(everywhere, scales) - prior.covariance(everywhere, (0.0,) * 4))
    assert np.allclose(added, np.repeat((0.1**2 + 0.2**2, 0.3**2 + 0.4**2), SIZE))


def test_residuals_fade_with_clocks_and_schedules():
    """Candidates 0 to 3 share a clock; 0 and 1 share SMs, not the launch operator; 0 and 4 differ in their clock."""
    prior = GaussianPrior(FEATURES, np.zeros((6, 2 * SIZE)))
    everywhere = np.arange(SIZE)
    nothing, by_clock, by_schedule = (
        prior.covariance(everywhere, scales)[:SIZE, :SIZE]
        for scales in ((0.0,) * 4, (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0))
    )
    clock, schedule = by_clock - nothing, by_schedule - nothing
    assert np.allclose(clock[0, :4], 1)
    assert np.allclose(clock[0, 4:], np.exp(-1 / 0.5))
    assert schedule[0, 0] == pytest.approx(1)
    assert schedule[0, 1] == pytest.approx(LAUNCH_CORRELATION)
    matern = np.sqrt(3) * np.log(24 / 6) / 0.8
    assert schedule[0, 2] == pytest.approx((1 + matern) * np.exp(-matern))
    assert schedule[0, 4] == pytest.approx(0.7 + 0.3 * np.exp(-((1 / 0.4) ** 2) / 2))


def dense_posterior(prior, data, scales):
    """Mean and covariance of all costs, by the textbook's formula with the inverse of the dense matrix."""
    places = np.concatenate((data.candidates, data.timed, SIZE + data.candidates))
    observed = np.log(np.concatenate((data.time_s, data.timed_time_s, data.energy_j / data.time_s)))
    covariance = prior.covariance(np.arange(SIZE), scales)
    noise = np.repeat(OF_BOTH, (len(data.candidates) + len(data.timed), len(data.candidates)))
    gain = covariance[:, places] @ np.linalg.inv(covariance[np.ix_(places, places)] + np.diag(noise**2))
    return prior.mean + gain @ (observed - prior.mean[places]), covariance - gain @ covariance[places]


numbers = st.lists(st.integers(0, SIZE - 1), max_size=6)


@settings(max_examples=40, deadline=None)
@given(numbers, numbers, st.integers(0, 2**32 - 1))
def test_rounds_condition_as_dense_formulas_do(first, second, seed):
    """Each is timed and half of them are measured, in two rounds of one prior that keeps what it has computed."""
    random = np.random.default_rng(seed)
    prior = GaussianPrior(FEATURES, ensemble())
    for chosen in (first, first + second):
        candidates, timed = np.array(chosen[::2], dtype=np.int64), np.array(chosen, dtype=np.int64)
        time_s, energy_j = (np.exp(0.1 * random.standard_normal(len(candidates))) * scale for scale in (1e-3, 0.3))
        data = Dataset(candidates, time_s, energy_j, STATIC_W, timed, 1e-3 * (1 + 0.1 * random.random(len(timed))))
        posterior = prior.condition(data, OF_BOTH)
        mean, covariance = dense_posterior(prior, data, posterior.scales)
        assert np.allclose(posterior.mean, mean, rtol=0, atol=1e-7)
        assert np.allclose(posterior.deviation**2, np.diag(covariance), rtol=0, atol=1e-8)
        rows = np.array([5, 2])
        places = np.concatenate((rows, SIZE + rows))
        factor = np.linalg.cholesky(covariance[np.ix_(places, places)] + 1e-7 * np.eye(4))
        expected = mean[places] + np.random.default_rng(seed).standard_normal((3, 4)) @ factor.T
        assert np.allclose(posterior.sample(rows, 3, np.random.default_rng(seed)), expected, atol=1e-5)


@pytest.mark.parametrize("data", [NOTHING, measured([0, 5], 1.3e-3, 350.0)], ids=["before", "after measuring"])
def test_deviations_are_the_standard_deviations_of_samples(data):
    posterior = GaussianPrior(FEATURES, ensemble()).condition(data, OF_BOTH)
    drawn = posterior.sample(np.arange(SIZE), 20_000, np.random.default_rng(1))
    assert np.allclose(drawn.mean(axis=0), posterior.mean, atol=0.05)
    assert np.allclose(drawn.std(axis=0), posterior.deviation, rtol=0.05, atol=5e-4)
    assert np.array_equal(posterior.time_deviation, posterior.deviation[:SIZE])


def test_what_was_measured_is_known_as_time_and_as_power():
    posterior = GaussianPrior(FEATURES, ensemble()).condition(measured([3], 1.3e-3, 350.0), OF_BOTH)
    assert np.exp(posterior.mean[3]) == pytest.approx(1.3e-3, rel=2 * NOISE)
    assert np.exp(posterior.mean[SIZE + 3]) == pytest.approx(350.0, rel=2 * NOISE)


def test_only_what_was_measured_is_known_within_the_noise():
    posterior = GaussianPrior(FEATURES, ensemble()).condition(measured([3], 1.3e-3, 350.0), OF_BOTH)
    known = np.zeros(2 * SIZE, dtype=bool)
    known[[3, SIZE + 3]] = True
    assert np.all(posterior.deviation[known] <= OF_BOTH)
    assert np.all(posterior.deviation[known] > np.divide(OF_BOTH, 2))
    assert np.all(posterior.deviation[~known] > NOISE)


def test_costs_are_time_and_dynamic_energy():
    stacked = np.log([2.0, 3.0, 100.0, 70.0])
    assert np.allclose(costs(stacked, STATIC_W), [(2.0, 80.0), (3.0, 30.0)])


def test_dynamic_energy_has_a_floor_below_static_power():
    assert np.allclose(costs(np.log([2.0, 50.0]), STATIC_W), [(2.0, 2.0 * LEAST_DYNAMIC_W)])
