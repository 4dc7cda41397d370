"""The likeliest scales of residuals, against the likelihood written out with dense inverses and determinants."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.search.noise import Noise
from kareus.search.residual_scales import (
    SCALE_PENALTY,
    SCALES,
    SWEEPS,
    USUAL_SCALE,
    Observations,
    ResidualKernels,
    likeliest_scales,
)

NOISE = 0.005


def correlations(random, count):
    """A correlation matrix out of distances between random points."""
    points = random.random(count)
    return np.exp(-np.abs(points[:, None] - points))


def observations(seed, times, powers):
    """Deviations drawn with residuals of scales 0.03 and 0.1 on top of what six coefficients cause."""
    random = np.random.default_rng(seed)
    kernels = tuple(
        ResidualKernels(correlations(random, count), correlations(random, count)) for count in (times, powers)
    )
    factor = 0.2 * random.standard_normal((times + powers, 6))
    covariance = factor @ factor.T + NOISE**2 * np.eye(times + powers)
    drawn = with_residuals(covariance, kernels, (0.03, 0.1, 0.1, 0.03))
    deviations = np.linalg.cholesky(drawn) @ random.standard_normal(times + powers)
    return Observations(deviations=deviations, covariance=covariance, kernels=kernels, noise=Noise(NOISE, NOISE))


def with_residuals(covariance, kernels, scales):
    times = len(kernels[0].by_clock)
    total = covariance.copy()
    total[:times, :times] += scales[0] ** 2 * kernels[0].by_clock + scales[1] ** 2 * kernels[0].by_schedule
    total[times:, times:] += scales[2] ** 2 * kernels[1].by_clock + scales[3] ** 2 * kernels[1].by_schedule
    return total


def likelihood(observed, scales):
    """Logarithm of a Gaussian density, but for a constant, and the penalty on unusual scales."""
    covariance = with_residuals(observed.covariance, observed.kernels, scales)
    exponent = observed.deviations @ np.linalg.inv(covariance) @ observed.deviations
    penalty = SCALE_PENALTY * sum(np.log(scale / USUAL_SCALE) ** 2 for scale in scales)
    return -(exponent + np.linalg.slogdet(covariance).logabsdet) / 2 - penalty


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 6))
def test_scales_are_those_of_a_search_over_dense_likelihoods(seed, times, powers):
    observed = observations(seed, times, powers)
    best = (USUAL_SCALE,) * 4
    for _ in range(SWEEPS):
        for place in range(4):
            tried = [(*best[:place], scale, *best[place + 1 :]) for scale in SCALES]
            best = max(tried, key=lambda scales: likelihood(observed, scales))
    found = likeliest_scales(observed)
    # Not the scales themselves are compared, which may be another pair where two are alike but for rounding.
    assert np.isclose(likelihood(observed, found), likelihood(observed, best), rtol=1e-9, atol=1e-7)


def test_without_powers_their_scales_are_the_usual_ones():
    assert likeliest_scales(observations(0, 5, 0))[2:] == (USUAL_SCALE, USUAL_SCALE)
