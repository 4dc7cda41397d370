"""Posterior of every candidate's cost: a Gaussian process whose prior is the GPU model under uncertain coefficients.

The process is over the logarithms of time and of mean power, stacked: the first half of every vector is time, the
second power. Its prior mean and covariance are those of an ensemble of GPU models (`kareus.search.prior`), so a
measurement moves all candidates that the same coefficients move: other clocks, SM counts and launch operators. What no
coefficient explains goes to residual processes: one that all schedules of a clock share (voltage steps), one of the
schedule that nearly holds at all clocks (contention), and a drift with the clock. Their scales are chosen by marginal
likelihood, anew from all data, so that a good prior is trusted and a wrong one is not.
"""

import functools
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array, Indices
from kareus.pareto import Points
from kareus.search.dataset import Dataset
from kareus.search.features import Features
from kareus.search.noise import Noise
from kareus.search.residual_scales import (
    UNMEASURED,
    Observations,
    ResidualKernels,
    ResidualScales,
    ResidualTables,
    likeliest_scales,
)

StackedIndices = Indices
"""Positions in the stacked vector: n for the time of candidate n, n plus the number of candidates for its power."""

LEVEL, TILT = 1.0, 0.2
"""Standard deviations of the drift: of its level, and of its change from the highest clock to the lowest."""
CLOCK_LENGTH = 0.5
"""Distance over which clocks share a residual, as a share of the clocks' range (exponential: powers move in steps)."""
INTERACTION_LENGTH = 0.4
"""Distance over which a schedule's residual changes with the clock, likewise (squared exponential)."""
SM_LENGTH = 0.8
"""Distance in the logarithm of the SM count over which schedules share a residual (Matern 3/2)."""
LAUNCH_CORRELATION = 0.3
"""Correlation between residuals of different launch operators."""
COMMON_SHARE = 0.7
"""Share of a schedule's residual variance that holds at all clocks."""
LEAST_DYNAMIC_W = 1e-3
"""Floor of dynamic power: a prior that is far off may predict less than static power."""


class GaussianPrior:
    """The prior over the costs of all candidates of one partition, to be conditioned on measurements."""

    def __init__(self, features: Features, ensemble: Array) -> None:
        """Estimate mean and covariance from `ensemble`.

        Args:
            features: features of every candidate.
            ensemble: log time and log power by GPU model, shape (models, 2 candidates).
        """
        self.mean: Array = ensemble.mean(axis=0)
        # A factor of what the coefficients and the drift cause: its product with its transpose is the covariance.
        spread = (ensemble - self.mean).T / np.sqrt(max(1, len(ensemble) - 1))
        self._factor = np.column_stack((spread, _drift(features.frequency_mhz)))
        self._residuals = _residual_tables(features)
        self._rows = _ProductRows(self._factor)

    def condition(self, data: Dataset, noise: Noise) -> "Posterior":
        """Return the posterior given measurements of time and power, and time-only measurements, with that noise.

        With K the covariance of the observations, d their deviations from the prior mean, k their covariance with
        every candidate and K = L L', the posterior mean is the prior's plus (L^-1 k)' L^-1 d.
        """
        size = len(self.mean) // 2
        # Times come first, of both kinds of measurement; then powers, which only measurements of energy give.
        timed = np.concatenate((data.candidates, data.timed))
        places = np.concatenate((timed, size + data.candidates))
        if not len(places):
            return Posterior(self, UNMEASURED, np.zeros((0, 2 * size)), self.mean)
        observed = np.log(np.concatenate((data.time_s, data.timed_time_s, data.energy_j / data.time_s)))
        deviations = observed - self.mean[places]
        shared, time, power = self._rows.of(places), self._residuals.at(timed), self._residuals.at(data.candidates)
        covariance = shared[:, places]
        variances = np.repeat(np.square(noise), (len(timed), len(data.candidates)))
        covariance.flat[:: len(covariance) + 1] += variances
        kernels = self._residuals.at(timed, timed), self._residuals.at(data.candidates, data.candidates)
        scales = likeliest_scales(
            Observations(deviations=deviations, covariance=covariance, kernels=kernels, noise=noise)
        )
        factor = np.linalg.cholesky(_with_residuals(covariance, *kernels, scales))
        # The inverse of L is small beside k, and multiplying by it is faster than solving for as many columns.
        whitening = np.linalg.inv(factor)
        explained = whitening @ _with_residuals(shared, time, power, scales)
        return Posterior(self, scales, explained, self.mean + explained.T @ (whitening @ deviations))

    def covariance(self, candidates: Indices, scales: ResidualScales) -> Array:
        """Return the prior covariance of the times, then the powers, of some candidates, square."""
        places = np.concatenate((candidates, len(self.mean) // 2 + candidates))
        factor = self._factor[places]
        kernels = self._residuals.at(candidates, candidates)
        return _with_residuals(factor @ factor.T, kernels, kernels, scales)

    def deviation(self, scales: ResidualScales) -> Array:
        """Return the prior standard deviations, shape (2 candidates,)."""
        residual = np.repeat(np.square(scales).reshape(2, 2).sum(axis=1), len(self.mean) // 2)
        deviation: Array = np.sqrt(np.square(self._factor).sum(axis=1) + residual)
        return deviation


class _ProductRows:
    """Rows of the product of a matrix with its transpose, each computed once: rounds add few observations to many."""

    def __init__(self, factor: Array) -> None:
        self._factor = factor
        self._known = np.zeros(len(factor), dtype=bool)
        self._rows = np.empty((len(factor), len(factor)))  # takes memory only where it is written

    def of(self, places: StackedIndices) -> Array:
        """Return the rows of `places`."""
        lacking = np.unique(places[~self._known[places]])
        self._rows[lacking] = self._factor[lacking] @ self._factor.T
        self._known[lacking] = True
        rows: Array = self._rows[places]
        return rows


def _with_residuals(shared: Array, time: ResidualKernels, power: ResidualKernels, scales: ResidualScales) -> Array:
    """Add what residuals cause to the covariance of some times, then powers (rows), with others (columns).

    Args:
        shared: what the coefficients and the drift cause, shape (rows, columns).
        time: kernels of the times among rows and columns.
        power: those of the powers; residuals of times and powers are independent.
        scales: standard deviations of the residuals.
    """
    covariance = shared.copy()
    rows, columns = time.by_clock.shape
    covariance[:rows, :columns] += time.covariance(scales[:2])
    covariance[rows:, columns:] += power.covariance(scales[2:])
    return covariance


@dataclass(frozen=True)
class Posterior:
    """The distribution of every candidate's log time and log power, given the measurements of some."""

    prior: GaussianPrior
    scales: ResidualScales
    explained: Array
    """Whitened covariance of the observations with every candidate, shape (observations, 2 candidates)."""
    mean: Array
    """Means of log time and log power, shape (2 candidates,)."""

    @functools.cached_property
    def deviation(self) -> Array:
        """Standard deviations, shape (2 candidates,)."""
        variance = np.square(self.prior.deviation(self.scales)) - np.square(self.explained).sum(axis=0)
        deviation: Array = np.sqrt(np.maximum(variance, 1e-12))
        return deviation

    @property
    def time_deviation(self) -> Array:
        """Standard deviations of log time, shape (candidates,)."""
        return self.deviation[: len(self.mean) // 2]

    def sample(self, rows: Indices, count: int, generator: np.random.Generator) -> Array:
        """Draw joint samples of log time and log power of candidates, shape (count, 2 rows)."""
        places = np.concatenate((rows, len(self.mean) // 2 + rows))
        explained = self.explained[:, places]
        covariance = self.prior.covariance(rows, self.scales) - explained.T @ explained
        covariance.flat[:: len(covariance) + 1] += 1e-7
        factor = np.linalg.cholesky(covariance)
        drawn: Array = self.mean[places] + generator.standard_normal((count, len(places))) @ factor.T
        return drawn


def costs(logarithms: Array, static_power_w: float) -> Points:
    """Return the points (time, dynamic energy) of stacked logarithms: shape (..., 2 n) to (..., n, 2)."""
    size = logarithms.shape[-1] // 2
    time_s = np.exp(logarithms[..., :size])
    dynamic_w = np.maximum(np.exp(logarithms[..., size:]) - static_power_w, LEAST_DYNAMIC_W)
    return np.stack((time_s, time_s * dynamic_w), axis=-1)


def _drift(frequency_mhz: Array) -> Array:
    """Basis of the drift of time and power, shape (2 candidates, 4): a level and a slope over the clock, for each."""
    slope = np.log(frequency_mhz / frequency_mhz.max())
    basis = np.column_stack((np.full_like(slope, LEVEL), TILT * slope / max(float(-slope.min()), 1e-9)))
    return np.kron(np.eye(2), basis)


def _residual_tables(features: Features) -> ResidualTables:
    """Correlations of the residuals by clock and by schedule.

    There are few clocks, SM counts and launch operators, so that correlations are looked up in small tables.
    """
    clocks, clock = np.unique(features.frequency_mhz, return_inverse=True)
    schedules, schedule = np.unique(features.matrix[:, 1:], axis=0, return_inverse=True)
    # Distance of clocks as a share of their range; exponential kernel, so that residuals may jump between clocks.
    clocks = clocks / max(float(np.ptp(clocks)), 1e-9)
    apart = np.abs(clocks[:, None] - clocks)
    # Schedules: Matern 3/2 in the logarithm of the SM count, less where launch operators differ.
    log_sms, launches = np.log(schedules[:, 0]), schedules[:, 1]
    sm_apart = np.sqrt(3) * np.abs(np.subtract.outer(log_sms, log_sms)) / SM_LENGTH
    alike = (1 + sm_apart) * np.exp(-sm_apart)
    alike *= np.where(np.equal.outer(launches, launches), 1.0, LAUNCH_CORRELATION)
    # Most of a schedule's residual holds at all clocks, the rest fades with their distance.
    across = COMMON_SHARE + (1 - COMMON_SHARE) * np.exp(-np.square(apart / INTERACTION_LENGTH) / 2)
    return ResidualTables(
        clock=clock, schedule=schedule, by_clock=np.exp(-apart / CLOCK_LENGTH), alike=alike, across=across
    )
