"""What is believed of every candidate: a Gaussian process whose prior is the GPU model under uncertain coefficients.

The process is over the logarithms of time and of mean power, stacked: the first half of every vector is time, the
second power. Its prior mean and covariance are those of an ensemble of GPU models (`kareus.search.prior`), so a
measurement moves all candidates that the same coefficients move: other clocks, SM counts and launch operators. What no
coefficient explains goes to residual processes: one that all schedules of a clock share (voltage steps), one of the
schedule that nearly holds at all clocks (contention), and a drift with the clock. How large they are is decided by
marginal likelihood, anew from all data, so that a good prior is trusted and a wrong one is not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points
from kareus.search.dataset import Dataset, Indices
from kareus.search.problem import Features

Array = NDArray[np.float64]

LEVEL, TILT = 1.0, 0.2
"""Standard deviations of the drift: of its level, and of its change from the highest clock to the lowest."""
CLOCK_LENGTH = 0.5
"""Of the clocks' range: distance over which clocks share a residual; rough (exponential), for powers move in steps."""
INTERACTION_LENGTH = 0.4
"""Likewise, for how a schedule's residual changes with the clock; smooth (squared exponential)."""
SM_LENGTH = 0.8
"""In logarithms of the SM count (Matern 3/2)."""
LAUNCH_CORRELATION = 0.3
"""Between residuals of different launch operators."""
COMMON_SHARE = 0.7
"""Share of a schedule's residual variance that holds at all clocks."""
SCALES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Standard deviations that residuals may have; likelihood chooses."""
USUAL_SCALE = 0.01
"""The likeliest before there are data."""
SCALE_PENALTY = 0.1
"""On the squared logarithm of a scale over the usual one: with few data, likelihood alone overfits."""
TRUSTS = (0.3, 1.0)
"""Factors on the ensemble's spread among which likelihood chooses: its coefficients may be nearly right."""
SWEEPS = 3
"""Of the coordinate search for the largest likelihood."""
LEAST_DYNAMIC_W = 1e-3
"""Below any: a prior that is far off may predict less than static power."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Of the prior; chosen by likelihood."""

    scales: tuple[float, ...]
    """Residuals of time: by clock, by schedule; then of power, likewise."""
    trust: float


UNMEASURED = Hyperparameters((2 * USUAL_SCALE,) * 4, 1.0)


class Belief:
    """The prior over all candidates of one partition, to be conditioned on measurements."""

    def __init__(self, features: Features, ensemble: Array, noise: float) -> None:
        """Take the moments of `ensemble`.

        Args:
            features: of every candidate, shape (candidates, 3).
            ensemble: log time and log power by GPU model, shape (models, 2 candidates).
            noise: relative standard deviation of one measured time or power.
        """
        self.mean: Array = ensemble.mean(axis=0)
        self._noise = noise
        self._spread = (ensemble - self.mean).T / np.sqrt(max(1, len(ensemble) - 1))
        self._drift = _drift(features[:, 0])
        self._kernels = _residual_kernels(features)

    def given(self, data: Dataset) -> "Conditioned":
        """Condition on measurements."""
        rows, size = data.candidates, len(self.mean) // 2
        if not len(rows):
            return Conditioned(self, UNMEASURED, np.zeros((0, 2 * size)), self.mean)
        measured = np.concatenate((np.log(data.time_s), np.log(data.energy_j / data.time_s)))
        surprise = measured - self.mean[_stacked(rows, size)]
        hyperparameters = self._likeliest(rows, surprise)
        factor = np.linalg.cholesky(self._observed(rows, hyperparameters))
        cross = self.covariance(rows, np.arange(size), hyperparameters)
        solved = np.linalg.solve(factor, np.column_stack((cross, surprise)))
        explained, white = solved[:, :-1], solved[:, -1]
        return Conditioned(self, hyperparameters, explained, self.mean + explained.T @ white)

    def covariance(self, rows: Indices, columns: Indices, hyperparameters: Hyperparameters) -> Array:
        """Prior covariance of candidates, shape (2 rows, 2 columns)."""
        size = len(self.mean) // 2
        a, b = _stacked(rows, size), _stacked(columns, size)
        covariance: Array = hyperparameters.trust**2 * self._spread[a] @ self._spread[b].T
        covariance += self._drift[a] @ self._drift[b].T
        by_clock, by_schedule = (kernel[np.ix_(rows, columns)] for kernel in self._kernels)
        time_clock, time_schedule, power_clock, power_schedule = np.square(hyperparameters.scales)
        covariance[: len(rows), : len(columns)] += time_clock * by_clock + time_schedule * by_schedule
        covariance[len(rows) :, len(columns) :] += power_clock * by_clock + power_schedule * by_schedule
        return covariance

    def _observed(self, rows: Indices, hyperparameters: Hyperparameters) -> Array:
        """Covariance of measurements, noise included."""
        return self.covariance(rows, rows, hyperparameters) + self._noise**2 * np.eye(2 * len(rows))

    def _likeliest(self, rows: Indices, surprise: Array) -> Hyperparameters:
        """Maximise the marginal likelihood, one hyperparameter at a time."""

        def score(candidate: Hyperparameters) -> float:
            factor = np.linalg.cholesky(self._observed(rows, candidate))
            white = np.linalg.solve(factor, surprise)
            unusual = np.sum(np.log(np.array(candidate.scales) / USUAL_SCALE) ** 2)
            return float(-white @ white / 2 - np.log(np.diag(factor)).sum() - SCALE_PENALTY * unusual)

        best = Hyperparameters((USUAL_SCALE,) * 4, TRUSTS[-1])
        for _ in range(SWEEPS):
            before = best
            for place in range(4):
                changed = [(*best.scales[:place], scale, *best.scales[place + 1 :]) for scale in SCALES]
                best = max((Hyperparameters(scales, best.trust) for scales in changed), key=score)
            best = max((Hyperparameters(best.scales, trust) for trust in TRUSTS), key=score)
            if best == before:
                break
        return best


@dataclass(frozen=True, slots=True)
class Conditioned:
    """What is believed of every candidate after measuring some."""

    prior: Belief
    hyperparameters: Hyperparameters
    explained: Array
    """Whitened covariance of the measurements with every candidate, shape (2 measured, 2 candidates)."""
    mean: Array
    """Of log time and log power, shape (2 candidates,)."""

    @property
    def deviation(self) -> Array:
        """Standard deviations, shape (2 candidates,)."""
        size = len(self.mean) // 2
        prior = self.prior
        time_scales, power_scales = np.square(self.hyperparameters.scales).reshape(2, 2).sum(axis=1)
        variance = self.hyperparameters.trust**2 * np.square(prior._spread).sum(axis=1)
        variance += np.square(prior._drift).sum(axis=1) + np.repeat((time_scales, power_scales), size)
        deviation: Array = np.sqrt(np.maximum(variance - np.square(self.explained).sum(axis=0), 1e-12))
        return deviation

    def sample(self, rows: Indices, count: int, generator: np.random.Generator) -> Array:
        """Draw log time and log power of candidates jointly, shape (count, 2 rows)."""
        places = _stacked(rows, len(self.mean) // 2)
        explained = self.explained[:, places]
        covariance = self.prior.covariance(rows, rows, self.hyperparameters) - explained.T @ explained
        factor = np.linalg.cholesky(covariance + 1e-7 * np.eye(len(places)))
        drawn: Array = self.mean[places] + generator.standard_normal((count, len(places))) @ factor.T
        return drawn


def costs(logarithms: Array, static_power_w: float) -> Points:
    """Points (time, dynamic energy) of stacked logarithms, shape (..., 2 n) to (..., n, 2)."""
    size = logarithms.shape[-1] // 2
    time_s = np.exp(logarithms[..., :size])
    dynamic_w = np.maximum(np.exp(logarithms[..., size:]) - static_power_w, LEAST_DYNAMIC_W)
    return np.stack((time_s, time_s * dynamic_w), axis=-1)


def _stacked(rows: Indices, size: int) -> Indices:
    return np.concatenate((rows, size + rows))


def _drift(frequency_mhz: Array) -> Array:
    """Basis of the drift of time and power, shape (2 candidates, 4)."""
    slope = np.log(frequency_mhz / frequency_mhz.max())
    basis = np.column_stack((np.full_like(slope, LEVEL), TILT * slope / max(float(-slope.min()), 1e-9)))
    return np.kron(np.eye(2), basis)


def _residual_kernels(features: Features) -> tuple[Array, Array]:
    """Correlations of the residuals by clock and by schedule, each of shape (candidates, candidates)."""
    clock = features[:, 0] / max(float(np.ptp(features[:, 0])), 1e-9)
    apart = np.abs(clock[:, None] - clock)
    sm_apart = np.sqrt(3) * np.abs(np.subtract.outer(np.log(features[:, 1]), np.log(features[:, 1]))) / SM_LENGTH
    schedule = (1 + sm_apart) * np.exp(-sm_apart)
    schedule *= np.where(features[:, 2, None] == features[:, 2], 1.0, LAUNCH_CORRELATION)
    interaction = np.exp(-np.square(apart / INTERACTION_LENGTH) / 2)
    return np.exp(-apart / CLOCK_LENGTH), schedule * (COMMON_SHARE + (1 - COMMON_SHARE) * interaction)
