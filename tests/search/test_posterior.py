"""The cost of candidates before and after measuring: moments that samples, covariances and data must agree with."""

import numpy as np
import pytest

from kareus.search.dataset import Dataset
from kareus.search.features import Features
from kareus.search.posterior import LEAST_DYNAMIC_W, GaussianPrior, costs

FEATURES = Features(
    np.array([(clock, sms, launch) for clock in (900, 1410) for sms in (6, 24) for launch in (0, 1)], dtype=float)
)
SIZE = len(FEATURES)
NOISE = 0.004
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
    everywhere = np.arange(2 * SIZE)
    some, none = (GaussianPrior(FEATURES, models, NOISE) for models in (ensemble(), np.zeros((6, 2 * SIZE))))
    scales = (0.01, 0.02, 0.03, 0.04)
    difference = some.covariance(everywhere, everywhere, scales) - none.covariance(everywhere, everywhere, scales)
    assert np.allclose(difference, np.cov(ensemble().T))


def test_times_and_powers_have_residuals_of_their_own_scales():
    prior = GaussianPrior(FEATURES, ensemble(), NOISE)
    everywhere = np.arange(2 * SIZE)
    scales = (0.1, 0.2, 0.3, 0.4)
    added = np.diag(
        prior.covariance(everywhere, everywhere, scales) - prior.covariance(everywhere, everywhere, (0.0,) * 4)
    )
    assert np.allclose(added, np.repeat((0.1**2 + 0.2**2, 0.3**2 + 0.4**2), SIZE))


@pytest.mark.parametrize("data", [NOTHING, measured([0, 5], 1.3e-3, 350.0)], ids=["before", "after measuring"])
def test_deviations_are_the_standard_deviations_of_samples(data):
    posterior = GaussianPrior(FEATURES, ensemble(), NOISE).condition(data)
    drawn = posterior.sample(np.arange(SIZE), 20_000, np.random.default_rng(1))
    assert np.allclose(drawn.mean(axis=0), posterior.mean, atol=0.05)
    assert np.allclose(drawn.std(axis=0), posterior.deviation, rtol=0.05, atol=5e-4)
    assert np.array_equal(posterior.time_deviation, posterior.deviation[:SIZE])


def test_what_was_measured_is_known_as_time_and_as_power():
    posterior = GaussianPrior(FEATURES, ensemble(), NOISE).condition(measured([3], 1.3e-3, 350.0))
    assert np.exp(posterior.mean[3]) == pytest.approx(1.3e-3, rel=2 * NOISE)
    assert np.exp(posterior.mean[SIZE + 3]) == pytest.approx(350.0, rel=2 * NOISE)


def test_only_what_was_measured_is_known_within_the_noise():
    posterior = GaussianPrior(FEATURES, ensemble(), NOISE).condition(measured([3], 1.3e-3, 350.0))
    known = np.zeros(2 * SIZE, dtype=bool)
    known[[3, SIZE + 3]] = True
    assert np.all(posterior.deviation[known] <= NOISE)
    assert np.all(posterior.deviation[known] > NOISE / 2)
    assert np.all(posterior.deviation[~known] > NOISE)


def test_costs_are_time_and_dynamic_energy():
    stacked = np.log([2.0, 3.0, 100.0, 70.0])
    assert np.allclose(costs(stacked, STATIC_W), [(2.0, 80.0), (3.0, 30.0)])


def test_dynamic_energy_has_a_floor_below_static_power():
    assert np.allclose(costs(np.log([2.0, 50.0]), STATIC_W), [(2.0, 2.0 * LEAST_DYNAMIC_W)])
