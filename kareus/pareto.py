"""Pareto sets and hypervolume of points in two objectives, both minimised.

Points are arrays of shape (n, 2): time first, then an energy. NaN is refused, since it compares with nothing.
"""

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]


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
