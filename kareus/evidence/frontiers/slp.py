"""Successive linear programs: least sum of absolute errors, and of shortfalls of what must stay positive, in a box.

Means of absolute errors have kinks at their optimum, where gradients say nothing and least squares stops elsewhere.
Linearised within a trust region such an objective is a linear program (Fletcher and Sainz de la Maza, Mathematical
Programming 43, 1989), which HiGHS solves exactly; the step counts only if the true objective falls. Every step corrects
the slopes by what it showed (Broyden, Mathematics of Computation 19, 1965), so that many share one set of differences.
Where none makes the objective fall, the best of the places that slopes were taken from may.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array

DIFFERENCE = 0.01
"""Step of finite differences."""
FIRST_TRUST, LARGEST_TRUST, LEAST_TRUST = 0.06, 0.15, 0.008
"""Largest change of a variable in a step; the search ends where it would fall below the last."""
LEAST_GAIN = 0.002
"""Smaller falls of the objective are what the kinks of planned curves leave to chance."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What an objective is made of at one place."""

    errors: Array
    """Their sizes count, each with its weight in it."""
    margins: Array
    """What they lack to 0 counts, each with its weight in it."""

    @property
    def objective(self) -> float:
        """The sum of both."""
        return float(np.abs(self.errors).sum() + np.maximum(-self.margins, 0.0).sum())


def minimise(terms: Callable[[Array], Terms], start: Array, lower: Array, upper: Array, steps: int) -> Array:
    """Search downhill from `start`.

    Args:
        terms: of the objective at a place; always equally many.
        start: within the box, shape (n,).
        lower: lower sides of the box, shape (n,).
        upper: upper sides.
        steps: most sets of slopes; each asks for `terms` n times, and once for every step that is tried with it.

    Returns:
        The best place found, shape (n,).
    """
    place, here = start, terms(start)
    for _ in range(steps):
        differences = np.where(place + DIFFERENCE <= upper, DIFFERENCE, -DIFFERENCE)
        probes = [place + step for step in np.diag(differences)]
        beside = [terms(probe) for probe in probes]
        before, slopes, trust = here, _slopes(here, beside, differences), FIRST_TRUST
        while trust >= LEAST_TRUST:
            low, high = np.maximum(lower - place, -trust), np.minimum(upper - place, trust)
            ahead = np.clip(place + _linear_step(here, slopes, low, high), lower, upper)
            there = terms(ahead)
            slopes = _corrected(slopes, ahead - place, here, there)
            if there.objective < here.objective - LEAST_GAIN:
                place, here, trust = ahead, there, min(1.5 * trust, LARGEST_TRUST)
            else:
                trust /= 2.5
        best = min(range(len(probes)), key=lambda n: beside[n].objective)
        if beside[best].objective < here.objective - LEAST_GAIN:
            place, here = probes[best], beside[best]
        elif here is before:
            break
    return place


def _slopes(here: Terms, beside: Sequence[Terms], differences: Array) -> tuple[Array, Array]:
    """Slopes of errors and margins, shapes (errors, n) and (margins, n)."""
    errors = np.array([b.errors - here.errors for b in beside]).T / differences
    margins = np.array([b.margins - here.margins for b in beside]).T / differences
    return errors, margins


def _corrected(slopes: tuple[Array, Array], step: Array, here: Terms, there: Terms) -> tuple[Array, Array]:
    """Return the least changed slopes that foretell what a step did."""
    length = step @ step
    if not length:
        return slopes
    seen = there.errors - here.errors, there.margins - here.margins
    errors, margins = (
        slope + np.outer(new - slope @ step, step) / length for slope, new in zip(slopes, seen, strict=True)
    )
    return errors, margins


def _linear_step(here: Terms, slopes: tuple[Array, Array], low: Array, high: Array) -> Array:
    """The step within [low, high] that lowers the linearised objective most, shape (n,).

    Its variables: the step, then the size of every error, then the shortfall of every margin.
    """
    from scipy.optimize import linprog  # noqa: PLC0415 - only fitting needs it

    error_slopes, margin_slopes = slopes
    errors, margins = len(here.errors), len(here.margins)
    sizes, apart = np.eye(errors), np.zeros((errors, margins))
    rows = np.vstack(
        [
            np.hstack([error_slopes, -sizes, apart]),
            np.hstack([-error_slopes, -sizes, apart]),
            np.hstack([-margin_slopes, apart.T, -np.eye(margins)]),
        ]
    )
    limits = np.concatenate([-here.errors, here.errors, here.margins])
    costs = np.concatenate([np.zeros(len(low)), np.ones(errors + margins)])
    bounds = [*zip(low, high, strict=True), *[(0.0, None)] * (errors + margins)]
    solved = linprog(costs, rows, limits, bounds=bounds, method="highs")
    step: Array = solved.x[: len(low)]
    return step
