"""Numbers fitted to measured times: their likeliest values, and how sure they are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.coefficient_space import CoefficientSpace, bound_note, softened, space_of
from kareus.gpu_model.declarations import FitPrior

ERROR_SCALE = 0.05
"""Relative error of a time that weighs as much as one standard deviation of a prior."""
SLOPE_STEP = 0.03
"""Change of a logarithm that slopes are taken over."""
INSIDE = 1e-6
"""Least distance of the start of a fit to a bound, in logarithms."""
NORMAL_90 = 1.645
"""Standard deviations to each side that hold 90 % of a normal distribution."""
UNTOLD = 0.9
"""Share of the spread of a prior from which on the data say nothing of a number."""

ErrorsOf = Callable[[Mapping[str, float]], Array]
"""Logarithms of predicted over measured times for numbers by name, shape (times,)."""


@dataclass(frozen=True, slots=True)
class FittedNumbers:
    """Numbers after a fit, as logarithms."""

    priors: Mapping[str, FitPrior]
    logarithms: Array
    """The likeliest, in the order of the priors, shape (numbers,)."""
    covariance: Array
    """Of the logarithms, by the slopes of the likeliest, shape (numbers, numbers)."""
    slopes: Array
    """Of the logarithms of times, those of outliers made less steep, shape (times, numbers)."""

    @property
    def space(self) -> CoefficientSpace:
        """Names, expectations and bounds as arrays."""
        return space_of(self.priors)

    @property
    def values(self) -> dict[str, float]:
        """The likeliest numbers by name."""
        return self.space.values(self.logarithms)

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """What holds each number with a chance of 90 %, within its bounds."""
        spreads, space = NORMAL_90 * np.sqrt(np.diag(self.covariance)), self.space
        ends = [np.exp(space.clipped(self.logarithms + side * spreads, 0.0)).tolist() for side in (-1, 1)]
        return dict(zip(self.priors, zip(*ends, strict=True), strict=True))

    def note(self, name: str) -> str:
        """Return what is to be said of a number: its interval, and whether a bound holds it or nothing tells it."""
        place = list(self.priors).index(name)
        prior, (low, high) = self.priors[name], self.intervals[name]
        untold = np.sqrt(self.covariance[place, place]) > UNTOLD * prior.spread
        bound = ", no run tells it" if untold else bound_note(prior, self.values[name])
        return f"90 %: {low:.3g} to {high:.3g}{bound}"


def fit_numbers(
    priors: Mapping[str, FitPrior],
    errors: ErrorsOf,
    start: Mapping[str, float],
    evaluations: int,
    weights: Sequence[float] | Array | float = 1.0,
) -> FittedNumbers:
    """Return what measured times leave of numbers: least squares in logarithms, softened, with a prior on each.

    Args:
        priors: expectation, spread and bounds of each number.
        errors: of the times that the fit is to.
        start: numbers to start from.
        evaluations: most steps.
        weights: square roots of the weights of times.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - only fitting needs it

    space = space_of(priors)

    def residuals(x: Array) -> Array:
        return np.concatenate([weights * softened(errors(space.values(x)) / ERROR_SCALE), space.distances(x)])

    def slopes(x: Array) -> Array:
        here, steps = residuals(x), np.where(x + SLOPE_STEP < space.upper, SLOPE_STEP, -SLOPE_STEP)
        columns = [(residuals(x + step * axis) - here) / step for step, axis in zip(steps, np.eye(len(x)), strict=True)]
        return np.stack(columns, axis=1)

    first = space.clipped(np.log([max(start[name], 1e-9) for name in priors]), INSIDE)
    bounds = (space.lower, space.upper)
    solved = least_squares(residuals, first, slopes, bounds=bounds, max_nfev=evaluations, ftol=1e-3)
    return FittedNumbers(
        priors=priors,
        logarithms=solved.x,
        covariance=np.linalg.inv(solved.jac.T @ solved.jac),
        slopes=solved.jac[: -len(priors)] * ERROR_SCALE,
    )
