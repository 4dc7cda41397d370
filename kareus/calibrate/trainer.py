"""Calibrating a trainer by a few short runs, each chosen by what it would tell.

Predictions of all runs are linear in the logarithms of the numbers, near enough, so that the numbers have a normal
posterior: the next run is the one after which the predictions of all runs are least uncertain. Slopes are taken again
after a few runs, and the numbers are fitted to all runs in the end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.coefficient_space import softened, space_of
from kareus.calibrate.number_fit import ERROR_SCALE, SLOPE_STEP, FittedNumbers, fit_numbers
from kareus.errors import ConfigError
from kareus.gpu_model.declarations import FitPrior

LINEARISED_AT = (0, 5, 12)
"""Numbers of runs after which slopes are taken again: the first ones move the numbers most."""
EVALUATIONS, LINEAR_EVALUATIONS = 6, 50
LEAST_RUNS = 3
"""Runs below which nothing is fitted."""
RANKED_RUNS, RANKED_TAU, RANKED_ERROR = 10, 0.6, 0.15
"""From how many runs, which order and which mean error of runs left out one may rank layouts by a calibration."""

TimesOf = Callable[[Mapping[str, float], Sequence[int]], Array]
"""Predicted times of some of the runs, by their indices, for numbers of the trainer by name."""
Measure = Callable[[int], float | None]
"""Measured time of a run; None where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCalibration:
    """Numbers of a trainer, and how well they predict its runs."""

    posterior: FittedNumbers
    chosen: tuple[int, ...]
    """Indices of the runs that were measured, in the order of their choice; those that failed are not among them."""
    measured_s: Array
    inside: Array
    """Logarithms of predicted over measured times, shape (runs,)."""
    left_out: Array
    """The same, each run predicted by numbers that were fitted to the others."""

    @property
    def error(self) -> float:
        """Mean absolute relative error of runs left out."""
        return float(np.abs(np.expm1(self.left_out)).mean())

    @property
    def tau(self) -> float:
        """Kendall's tau of the runs' measured times and those predicted when left out."""
        from scipy.stats import kendalltau  # noqa: PLC0415 - slow to import, and few ask for it

        return float(kendalltau(self.measured_s, self.measured_s * np.exp(self.left_out)).statistic)

    @property
    def doubts(self) -> list[str]:
        """Why layouts may not be ranked by these numbers; empty if they may."""
        return [
            *([f"fewer than {RANKED_RUNS} runs"] if len(self.chosen) < RANKED_RUNS else []),
            *([f"Kendall's tau below {RANKED_TAU:g}"] if not self.tau >= RANKED_TAU else []),
            *([f"errors above {100 * RANKED_ERROR:g} %"] if self.error > RANKED_ERROR else []),
        ]


def calibrate_trainer(
    priors: Mapping[str, FitPrior], times: TimesOf, runs: int, measure: Measure, most: int
) -> TrainerCalibration:
    """Choose runs one after the other, measure them, and fit the numbers of the trainer.

    Args:
        priors: of the numbers.
        times: predicted times of runs.
        runs: number of those that may be chosen.
        measure: the measured time of one.
        most: runs to measure.

    Raises:
        ConfigError: fewer than three runs can be measured.
    """
    values = {name: prior.value for name, prior in priors.items()}
    chosen: list[int] = []
    measured_s: list[float] = []
    left = set(range(runs))
    model = LinearTimes.of(priors, times, values, range(runs))
    while left and len(chosen) < most:
        if len(chosen) in LINEARISED_AT[1:] and model.values != values:
            model = LinearTimes.of(priors, times, values, range(runs))
        posterior = model.posterior(priors, chosen, measured_s)
        values = posterior.values
        run = most_telling(model.slopes, posterior.covariance, left)
        left.remove(run)
        time_s = measure(run)
        if time_s is not None:
            chosen.append(run)
            measured_s.append(time_s)
    return fit_runs(priors, times, chosen, measured_s, values)


def fit_runs(
    priors: Mapping[str, FitPrior],
    times: TimesOf,
    chosen: Sequence[int],
    measured_s: Sequence[float],
    start: Mapping[str, float] | None = None,
) -> TrainerCalibration:
    """Fit the numbers of a trainer to measured runs; arguments as of `calibrate_trainer`.

    Raises:
        ConfigError: fewer than three runs.
    """
    if len(chosen) < LEAST_RUNS:
        runs = f"{len(chosen)} measured run{'s' * (len(chosen) != 1)}"
        raise ConfigError(f"{runs}: a calibration needs {LEAST_RUNS} at least; measure more.")
    measured = np.log(measured_s)
    first = start or {name: prior.value for name, prior in priors.items()}
    posterior = fit_numbers(priors, lambda values: np.log(times(values, chosen)) - measured, first, EVALUATIONS)
    return TrainerCalibration(
        posterior=posterior,
        chosen=tuple(chosen),
        measured_s=np.array(measured_s),
        inside=np.log(times(posterior.values, chosen)) - measured,
        left_out=_left_out(posterior, times, chosen, measured),
    )


def _left_out(posterior: FittedNumbers, times: TimesOf, chosen: Sequence[int], measured: Array) -> Array:
    """Logarithms of predicted over measured times, each with the numbers that the other runs alone lead to.

    By one step of Gauss and Newton from the fit to all runs, whose slopes are known.
    """
    space, slopes = posterior.space, posterior.slopes / ERROR_SCALE
    prior = np.diag(space.spreads**-2)
    logarithms = []
    for place, run in enumerate(chosen):
        others = np.delete(slopes, place, axis=0)
        slope = slopes[place]
        inverse = np.linalg.inv(others.T @ others + prior)
        residual = softened((np.log(times(posterior.values, [run])) - measured[place]) / ERROR_SCALE)
        moved = space.clipped(posterior.logarithms + inverse @ slope * residual[0], 0.0)
        logarithms.append(float(np.log(times(space.values(moved), [run])[0]) - measured[place]))
    return np.array(logarithms)


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """Predicted times of all runs near some numbers."""

    values: Mapping[str, float]
    at: Array
    """Logarithms of the numbers, shape (numbers,)."""
    logarithms: Array
    """Of times, shape (runs,)."""
    slopes: Array
    """Shape (runs, numbers)."""

    @classmethod
    def of(
        cls, priors: Mapping[str, FitPrior], times: TimesOf, values: Mapping[str, float], runs: Sequence[int]
    ) -> "LinearTimes":
        """Take slopes at some numbers."""
        space = space_of(priors)
        at = space.clipped(np.log([values[name] for name in priors]), 0.0)
        here = np.log(times(space.values(at), runs))
        steps = np.where(at + SLOPE_STEP < space.upper, SLOPE_STEP, -SLOPE_STEP)
        moved = np.stack([np.log(times(space.values(at + move), runs)) for move in np.diag(steps)], axis=1)
        return cls(dict(values), at, here, (moved - here[:, None]) / steps)

    def posterior(
        self, priors: Mapping[str, FitPrior], chosen: Sequence[int], measured_s: Sequence[float]
    ) -> FittedNumbers:
        """Return what measured runs leave of the numbers."""
        measured, chosen = np.log(measured_s), list(chosen)

        def errors(values: Mapping[str, float]) -> Array:
            moved = np.log([values[name] for name in priors]) - self.at
            return self.logarithms[chosen] + self.slopes[chosen] @ moved - measured

        return fit_numbers(priors, errors, self.values, LINEAR_EVALUATIONS)


def most_telling(slopes: Array, covariance: Array, left: Collection[int]) -> int:
    """Return the run after which the predictions of all runs are least uncertain, the first of equal ones.

    Args:
        slopes: of the logarithms of all times, shape (runs, numbers).
        covariance: of the logarithms of the numbers.
        left: runs to choose from.

    Example:
        >>> most_telling(np.array([[1.0, 0.0], [0.1, 0.1], [0.0, 2.0]]), np.eye(2), {0, 1, 2})
        2
    """
    shared = slopes @ covariance @ slopes.T
    gains = (shared**2).sum(axis=0) / (ERROR_SCALE**2 + np.diag(shared))
    return max(sorted(left), key=lambda run: gains[run])


def telling_runs(
    slopes: Array, covariance: Array, count: int, first: Sequence[int] = (), last: Collection[int] = ()
) -> list[int]:
    """Return as many runs, each chosen as if those before it had been measured, which begin with the `first`.

    The `last` are chosen where no others are left. Other arguments are those of `most_telling`.
    """
    chosen: list[int] = []
    left = set(range(len(slopes)))
    while left and len(chosen) < count:
        among = left.difference(last) or left
        run = first[len(chosen)] if len(chosen) < len(first) else most_telling(slopes, covariance, among)
        left.remove(run)
        chosen.append(run)
        along = covariance @ slopes[run]
        covariance = covariance - np.outer(along, along) / (ERROR_SCALE**2 + slopes[run] @ along)
    return chosen
