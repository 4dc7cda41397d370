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
SCALES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Standard deviations among which likelihood chooses those of the residuals."""
USUAL_SCALE = 0.01
"""Scale that is the likeliest before there are data."""
SCALE_PENALTY = 0.1
"""Penalty on the squared logarithm of a scale over the usual one: with few data, likelihood alone overfits."""
SWEEPS = 3
"""Largest number of sweeps of the coordinate search for the largest likelihood."""
LEAST_DYNAMIC_W = 1e-3
"""Floor of dynamic power: a prior that is far off may predict less than static power."""

ResidualScales = tuple[float, ...]
"""Standard deviations of residuals: of time by clock and by schedule; then of power, likewise."""
UNMEASURED: ResidualScales = (2 * USUAL_SCALE,) * 4


class GaussianPrior:
    """The prior over the costs of all candidates of one partition, to be conditioned on measurements."""

    def __init__(self, features: Features, ensemble: Array, noise: float) -> None:
        """Estimate mean and covariance from `ensemble`.

        Args:
            features: features of every candidate.
            ensemble: log time and log power by GPU model, shape (models, 2 candidates).
            noise: relative standard deviation of one measured time or power.
        """
        self.mean: Array = ensemble.mean(axis=0)
        self._noise = noise
        # A factor of the sample covariance: its product with its transpose is the covariance.
        self._spread = (ensemble - self.mean).T / np.sqrt(max(1, len(ensemble) - 1))
        self._drift = _drift(features.frequency_mhz)
        self._kernels = _residual_kernels(features)

    def condition(self, data: Dataset) -> "Posterior":
        """Return the posterior given measurements of time and power, and time-only measurements."""
        size = len(self.mean) // 2
        # Times come first, of both kinds of measurement; then powers, which only measurements of energy give.
        places = np.concatenate((data.candidates, data.timed, size + data.candidates))
        if not len(places):
            return Posterior(self, UNMEASURED, np.zeros((0, 2 * size)), self.mean)
        observed = np.log(np.concatenate((data.time_s, data.timed_time_s, data.energy_j / data.time_s)))
        deviations = observed - self.mean[places]
        terms = self._terms(places, places)
        scales = self._likeliest(terms, deviations)
        # With K = L L' the covariance of the observations, whitening by L gives mean and variance of all candidates.
        factor = np.linalg.cholesky(self._observed(terms, scales))
        cross = self._terms(places, np.arange(2 * size)).covariance(scales)
        solved = np.linalg.solve(factor, np.column_stack((cross, deviations)))
        explained, white = solved[:, :-1], solved[:, -1]
        return Posterior(self, scales, explained, self.mean + explained.T @ white)

    def covariance(self, rows: StackedIndices, columns: StackedIndices, scales: ResidualScales) -> Array:
        """Return the prior covariance of positions in the stacked vector, shape (rows, columns)."""
        return self._terms(rows, columns).covariance(scales)

    def _terms(self, rows: StackedIndices, columns: StackedIndices) -> "_CovarianceTerms":
        size = len(self.mean) // 2
        candidates = np.ix_(rows % size, columns % size)
        by_clock, by_schedule = (kernel[candidates] for kernel in self._kernels)
        return _CovarianceTerms(
            ensemble=self._spread[rows] @ self._spread[columns].T,
            drift=self._drift[rows] @ self._drift[columns].T,
            by_clock=by_clock,
            by_schedule=by_schedule,
            times=(int((rows < size).sum()), int((columns < size).sum())),
        )

    def _observed(self, terms: "_CovarianceTerms", scales: ResidualScales) -> Array:
        """Covariance of observations, noise included."""
        covariance = terms.covariance(scales)
        covariance[np.diag_indices_from(covariance)] += self._noise**2
        return covariance

    def _likeliest(self, terms: "_CovarianceTerms", deviations: Array) -> ResidualScales:
        """Maximise the marginal likelihood of the observations' deviations from the prior mean, one scale at a time."""

        @functools.cache
        def score(candidate: ResidualScales) -> float:
            factor = np.linalg.cholesky(self._observed(terms, candidate))
            white = np.linalg.solve(factor, deviations)
            unusual = np.sum(np.log(np.array(candidate) / USUAL_SCALE) ** 2)
            return float(-white @ white / 2 - np.log(np.diag(factor)).sum() - SCALE_PENALTY * unusual)

        best: ResidualScales = (USUAL_SCALE,) * 4
        for _ in range(SWEEPS):
            before = best
            for place in range(4):
                best = max(((*best[:place], scale, *best[place + 1 :]) for scale in SCALES), key=score)
            if best == before:
                break
        return best


@dataclass(frozen=True, slots=True)
class _CovarianceTerms:
    """Terms of the covariance of some positions (rows) with others (columns), each of that shape.

    Among rows and columns times come first, then powers.
    """

    ensemble: Array
    drift: Array
    by_clock: Array
    by_schedule: Array
    times: tuple[int, int]
    """Number of rows and of columns that are times."""

    def covariance(self, scales: ResidualScales) -> Array:
        """Return the weighted sum of the terms, shape (rows, columns)."""
        covariance = self.ensemble + self.drift
        rows, columns = self.times
        time_clock, time_schedule, power_clock, power_schedule = np.square(scales)
        time, power = np.s_[:rows, :columns], np.s_[rows:, columns:]
        covariance[time] += time_clock * self.by_clock[time] + time_schedule * self.by_schedule[time]
        covariance[power] += power_clock * self.by_clock[power] + power_schedule * self.by_schedule[power]
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
        size = len(self.mean) // 2
        prior = self.prior
        time_scales, power_scales = np.square(self.scales).reshape(2, 2).sum(axis=1)
        variance = np.square(prior._spread).sum(axis=1) + np.square(prior._drift).sum(axis=1)
        variance += np.repeat((time_scales, power_scales), size)
        deviation: Array = np.sqrt(np.maximum(variance - np.square(self.explained).sum(axis=0), 1e-12))
        return deviation

    @property
    def time_deviation(self) -> Array:
        """Standard deviations of log time, shape (candidates,)."""
        return self.deviation[: len(self.mean) // 2]

    def sample(self, rows: Indices, count: int, generator: np.random.Generator) -> Array:
        """Draw joint samples of log time and log power of candidates, shape (count, 2 rows)."""
        places = np.concatenate((rows, len(self.mean) // 2 + rows))
        explained = self.explained[:, places]
        covariance = self.prior.covariance(places, places, self.scales) - explained.T @ explained
        factor = np.linalg.cholesky(covariance + 1e-7 * np.eye(len(places)))
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


def _residual_kernels(features: Features) -> tuple[Array, Array]:
    """Correlations of the residuals by clock and by schedule, each of shape (candidates, candidates)."""
    # Distance of clocks as a share of their range; exponential kernel, so that residuals may jump between clocks.
    clock = features.frequency_mhz / max(float(np.ptp(features.frequency_mhz)), 1e-9)
    apart = np.abs(clock[:, None] - clock)
    # Schedules: Matern 3/2 in the logarithm of the SM count, less where launch operators differ.
    log_sms = np.log(features.sm_count)
    sm_apart = np.sqrt(3) * np.abs(np.subtract.outer(log_sms, log_sms)) / SM_LENGTH
    schedule = (1 + sm_apart) * np.exp(-sm_apart)
    schedule *= np.where(np.equal.outer(features.launch_index, features.launch_index), 1.0, LAUNCH_CORRELATION)
    # Most of a schedule's residual holds at all clocks, the rest fades with their distance.
    interaction = np.exp(-np.square(apart / INTERACTION_LENGTH) / 2)
    return np.exp(-apart / CLOCK_LENGTH), schedule * (COMMON_SHARE + (1 - COMMON_SHARE) * interaction)
