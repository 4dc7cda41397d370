"""Pareto sets and hypervolume of points in two objectives, both minimised; and which times are as good as the least.

Points are arrays of shape (n, 2): time first, then an energy. NaN is refused, since it compares with nothing.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROUNDING = 1e-9
"""Share by which values may differ that are equal: sums of the same floats, in another order."""
AS_FAST = 0.003
"""Share of the least time by which a plan may take longer and still count as one of the fastest.

Frontiers are so steep at their fast end that it saves energy (default workload: 20.14 kJ for 20.22),
and measuring does not tell such times apart.
"""


def pareto_mask(points: Points) -> Mask:
    """Mask of the points that no other point dominates; of equal points the first stays.

    Args:
        points: shape (n, 2).

    Raises:
        ValueError: wrong shape, or a NaN.
    """
    return pareto_masks(_checked(points))


def pareto_masks(points: Points) -> Mask:
    """Masks of the points that no other point of their set dominates, for many sets of points at once.

    Args:
        points: shape (..., n, 2), without NaN.
    """
    order = np.lexsort((points[..., 1], points[..., 0]))  # stable: of equal points, the first comes first
    energies = np.take_along_axis(points[..., 1], order, axis=-1)
    lower = np.ones(energies.shape, dtype=bool)
    lower[..., 1:] = energies[..., 1:] < np.minimum.accumulate(energies, axis=-1)[..., :-1]
    mask = np.empty_like(lower)
    np.put_along_axis(mask, order, lower, axis=-1)
    return mask


def pareto_front(points: Points) -> Points:
    """The non-dominated points, by rising time (and so by falling energy)."""
    front = _checked(points)[pareto_mask(points)]
    return front[np.argsort(front[:, 0])]


def pareto_order(costs: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the plans that no other dominates, by rising time; what differs by rounding is equal.

    Args:
        costs: times and energies of plans, in any order, which has no influence on which are kept.
    """
    if not costs:
        return []
    points = _checked(np.array(costs))
    order = np.lexsort((points[:, 1], points[:, 0]))
    equal = np.column_stack([_rounded(column) for column in points[order].T])
    return [int(n) for n in order[pareto_masks(equal)]]


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values, each replaced by the least of those that differ from it, or from one another on the way, by rounding."""
    order = np.argsort(values)
    rising = values[order]
    is_first = np.append(True, np.diff(rising) > ROUNDING * np.abs(rising[1:]))
    least = np.empty_like(values)
    least[order] = rising[is_first][np.cumsum(is_first) - 1]
    return least


def as_fast_s(times_s: Iterable[float]) -> float:
    """Return the time within which plans count as the fastest of those that take so long."""
    return min(times_s) * (1 + AS_FAST) * (1 + ROUNDING)


def hypervolume(points: Points, reference: Points) -> float:
    """Area dominated by `points` and bounded by `reference` (shape (2,)); points beyond it add nothing."""
    front = _front_within(points, reference)
    widths = np.diff(np.append(front[:, 0], reference[0]))
    return float(np.sum(widths * (reference[1] - front[:, 1])))


def hypervolume_improvement(candidates: Points, points: Points, reference: Points) -> NDArray[np.float64]:
    """What each of `candidates` alone would add to the hypervolume of `points`; closed form, shape (m,).

    The front is a staircase; a candidate adds, over every step to the right of its time, the height between its
    energy and the step.
    """
    candidates = _checked(candidates)
    front = _front_within(points, reference)
    lefts = np.concatenate(([-np.inf], front[:, 0]))
    rights = np.append(front[:, 0], reference[0])
    ceilings = np.concatenate(([reference[1]], front[:, 1]))
    widths = np.clip(rights - np.maximum(lefts, candidates[:, :1]), 0, None)
    heights = np.clip(ceilings - candidates[:, 1:], 0, None)
    improvements: NDArray[np.float64] = np.sum(widths * heights, axis=1)
    return improvements


def _front_within(points: Points, reference: Points) -> Points:
    front = pareto_front(points)
    return front[np.all(front < reference, axis=1)]


def _checked(points: Points) -> Points:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2:  # noqa: PLR2004 - two objectives
        raise ValueError(f"expected points of shape (n, 2), got {points.shape}")
    if np.isnan(points).any():
        raise ValueError("points contain NaN, which is neither better nor worse than a number")
    return points
