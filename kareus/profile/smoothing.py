"""Estimating what programs cost at every clock from noisy measurements: smooth curves over the clock.

The best of several noisy measurements is the luckiest one. At the fast end of a curve this decides which clock is
chosen: neighbouring clocks differ by less time than one measurement resolves, and by per cents of energy. So planning
uses estimates instead of single measurements: time and mean power, in logarithms, are Gaussian processes over the
logarithm of the clock. Curves of one family, such as a backward on every stage, share their shape but for a small part
of their own; each has a level of its own. How rough shapes are and how noisy measurements are is chosen by marginal
likelihood, from the scatter around the curves and between repeats; nothing about the GPU is presupposed.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array

SmoothingScales = tuple[float, float, float]
"""Standard deviations: of the shape that curves share, of a curve's own shape, and of one measurement's noise."""
CurveClock = tuple[int, int]
"""Number of a curve, and a clock in MHz at which it was measured."""

LEVEL = 1.0
"""Standard deviation of a curve's level around the mean of its own measurements."""
SLOPE, OWN_SLOPE = 1.0, 0.01
"""Standard deviations of the slope over the searched clocks: of what curves share, and of their own."""
LENGTH = 0.5
"""Distance over which a shape bends, as a share of the clocks' range (Matern 3/2, which allows kinks of throttling)."""
SHARED = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Standard deviations that each of the three may have; likelihood chooses."""
OWN = (0.0003, 0.001, 0.003, 0.01)
NOISES = (1e-4, 3e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 6e-3, 1e-2, 2e-2, 3e-2, 5e-2)
USUAL: SmoothingScales = (0.01, 0.001, 0.003)
"""Scales that are the likeliest before there are data."""
SCALE_PENALTY = 0.1
"""Penalty on the squared logarithm of a scale over the usual one: with few data, likelihood alone overfits."""
SWEEPS = 3
"""Largest number of sweeps of the search for the largest likelihood; two are usual."""
INDISTINCT = 4.0
"""Standard deviations of one measurement within which of the least time the order of clocks is decided by noise."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement of a program at a clock."""

    curve: int
    """Number of the program within its family."""
    frequency_mhz: int
    time_s: float
    energy_j: float
    temperature_c: float | None = None
    """Mean temperature of the GPU meanwhile; None where it is not known."""
    is_power_limited: bool = False
    """Whether the power limit kept the GPU below the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Cost of a program at a clock, estimated from all measurements of its family."""

    time_s: float
    energy_j: float
    temperature_c: float | None
    """Mean over the measurements at this clock; None where one is not known. It is not smoothed."""
    is_power_limited: bool
    """Whether one of the measurements at this clock is."""
    time_error_s: float
    """Standard error from the noise of measuring, as the next."""
    energy_error_j: float
    time_noise: float
    """Relative standard deviation of one measured time, as estimated; the same over a family, as the next."""
    energy_noise: float
    measurements: int
    """Number of measurements at this clock."""


def smoothed(observations: Sequence[Observation]) -> dict[CurveClock, Estimate]:
    """Estimate the costs of one family of programs wherever it was measured."""
    # A place is a curve at a clock; `inverse` gives the place of each measurement.
    seen = np.array([(o.curve, o.frequency_mhz) for o in observations])
    places, inverse = np.unique(seen, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)  # NumPy 2.0 alone gives it another shape
    measured_s, measured_j = np.array([(o.time_s, o.energy_j) for o in observations]).T
    time, time_error, time_noise = _fit(places, inverse, np.log(measured_s))
    power, power_error, power_noise = _fit(places, inverse, np.log(measured_j / measured_s))
    time_s, energy_j = np.exp(time), np.exp(time + power)
    counts = np.bincount(inverse)
    limited = np.bincount(inverse, [o.is_power_limited for o in observations]) > 0
    unknown_as_nan = [np.nan if o.temperature_c is None else o.temperature_c for o in observations]
    temperatures_c = np.bincount(inverse, unknown_as_nan) / counts
    return {
        (int(curve), int(frequency_mhz)): Estimate(
            time_s=float(time_s[n]),
            energy_j=float(energy_j[n]),
            temperature_c=None if np.isnan(temperatures_c[n]) else float(temperatures_c[n]),
            is_power_limited=bool(limited[n]),
            time_error_s=float(time_s[n] * time_error[n]),
            energy_error_j=float(energy_j[n] * np.hypot(time_error[n], power_error[n])),
            time_noise=time_noise,
            energy_noise=float(np.hypot(time_noise, power_noise)),
            measurements=int(counts[n]),
        )
        for n, (curve, frequency_mhz) in enumerate(places)
    }


def undecided(estimates: dict[CurveClock, Estimate]) -> list[CurveClock]:
    """Return the clocks about as fast as the fastest of their curve, where noise would decide which is the fastest."""
    least_s: dict[int, float] = {}
    for (curve, _), estimate in estimates.items():
        least_s[curve] = min(least_s.get(curve, np.inf), estimate.time_s)
    return [
        place
        for place, estimate in estimates.items()
        if estimate.time_s <= least_s[place[0]] * (1 + INDISTINCT * estimate.time_noise)
    ]


def _fit(places: NDArray[np.int64], inverse: NDArray[np.int64], logarithms: Array) -> tuple[Array, Array, float]:
    """Posterior means and standard deviations of the places, each of shape (places,), and the noise.

    Args:
        places: curve and clock of each place, shape (places, 2).
        inverse: place of each measurement, shape (measurements,).
        logarithms: what was measured, shape (measurements,).
    """
    # Repeats of a place enter as their mean; their scatter around it tells about the noise alone.
    counts = np.bincount(inverse)
    means = np.bincount(inverse, logarithms) / counts
    within = float(np.square(logarithms - means[inverse]).sum()), len(logarithms) - len(counts)
    # What is fitted are deviations from the level of each curve, the mean over its places.
    curves = np.unique(places[:, 0], return_inverse=True)[1]
    levels = (np.bincount(curves, means) / np.bincount(curves))[curves]
    terms = _ShapeTerms.of(places)
    scales = _likeliest(terms, means - levels, counts, within)
    # Posterior of a Gaussian process at the places themselves: with prior K and noise N, mean and covariance follow
    # from K (K + N)^-1.
    prior = terms.covariance(scales)
    gain = np.linalg.solve(prior + np.diag(scales[2] ** 2 / counts), prior)
    variance = np.diag(prior) - np.einsum("ij,ji->i", prior, gain)
    return levels + gain.T @ (means - levels), np.sqrt(np.maximum(variance, 0.0)), scales[2]


@dataclass(frozen=True, slots=True)
class _ShapeTerms:
    """Terms of the prior covariance of all places, each of shape (places, places)."""

    given: Array
    """Levels and slopes, whose scales are fixed."""
    shape: Array
    own_shape: Array

    @classmethod
    def of(cls, places: NDArray[np.int64]) -> "_ShapeTerms":
        curve, frequency_mhz = places.T
        same = np.equal.outer(curve, curve)
        clock = np.log(frequency_mhz.astype(np.float64))
        # The highest clock is at 0, the lowest at -1.
        clock = (clock - clock.max()) / max(float(np.ptp(clock)), 1e-9)
        slopes = np.outer(clock, clock)
        # Matern 3/2 of the distance between clocks.
        apart = np.sqrt(3) * np.abs(clock[:, None] - clock) / LENGTH
        shape = (1 + apart) * np.exp(-apart)
        return cls(LEVEL**2 * same + SLOPE**2 * slopes + OWN_SLOPE**2 * slopes * same, shape, shape * same)

    def covariance(self, scales: SmoothingScales) -> Array:
        return self.given + scales[0] ** 2 * self.shape + scales[1] ** 2 * self.own_shape


def _likeliest(
    terms: _ShapeTerms, deviations: Array, counts: NDArray[np.int64], within: tuple[float, int]
) -> SmoothingScales:
    """Maximise the marginal likelihood.

    Args:
        terms: of the prior covariance.
        deviations: means of the places, less the level of their curve.
        counts: measurements of each place.
        within: sum of squares of measurements around the means of their places, and its degrees of freedom.
    """

    @functools.cache
    def score(scales: SmoothingScales) -> float:
        factor = np.linalg.cholesky(terms.covariance(scales) + np.diag(scales[2] ** 2 / counts))
        white = np.linalg.solve(factor, deviations)
        repeats = within[0] / (2 * scales[2] ** 2) + within[1] * np.log(scales[2])
        unusual = np.sum(np.log(np.divide(scales, USUAL)) ** 2)
        return float(-white @ white / 2 - np.log(np.diag(factor)).sum() - repeats - SCALE_PENALTY * unusual)

    best = USUAL
    for _ in range(SWEEPS):
        before = best
        # Together, for a kink may pass for noise, or noise for a rough shape: each alone would stay where it is.
        best = max(((shared, best[1], noise) for shared, noise in itertools.product(SHARED, NOISES)), key=score)
        best = max(((best[0], scale, best[2]) for scale in OWN), key=score)
        if best == before:
            break
    return best
