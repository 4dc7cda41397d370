"""Joint samples of the costs of all candidates, and the mean hypervolume that measuring some of them would add.

All samples are treated at once: their frontiers are rows of arrays, filled up with the reference point, which adds
nothing.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.pareto import Points, pareto_masks

CORNER = 1.0
"""Both coordinates of the reference point in scaled axes."""


class PosteriorSamples:
    """Samples of the costs of candidates that may be measured and of those that have been."""

    def __init__(self, samples: NDArray[np.float64], offered: int, margin: float) -> None:
        """Scale each sample to its own frontier.

        Args:
            samples: (time, dynamic energy), shape (samples, offered + measured, 2).
            offered: candidates that may be measured; they come first.
            margin: reference point, as a multiple of a frontier's maxima.
        """
        masks = pareto_masks(samples)
        on_front = masks[..., None]
        ideal = samples.min(axis=1, keepdims=True)
        reference = margin * np.where(on_front, samples, -np.inf).max(axis=1, keepdims=True)
        scaled = (samples - ideal) / (reference - ideal)
        self._undominated = masks[:, :offered]
        self._points: Points = scaled[:, :offered]
        self._measured = _fronts(scaled[:, offered:])
        self._volumes = _areas(_fronts(scaled))

    @property
    def remaining(self) -> float:
        """Mean share of the hypervolume that measuring all candidates would add."""
        return float(np.mean(1 - _areas(self._measured) / self._volumes))

    @property
    def chances(self) -> NDArray[np.float64]:
        """Share of the samples in which no candidate dominates it, of every candidate on offer."""
        chances: NDArray[np.float64] = self._undominated.mean(axis=0)
        return chances

    def best(self, size: int) -> tuple[Indices, NDArray[np.float64]]:
        """Choose candidates greedily by mean hypervolume improvement, each given those chosen before it.

        Only candidates that are on the frontier of some sample are considered.

        Returns:
            Their positions among the candidates on offer, and the share of the hypervolume that each is to add.
        """
        # A candidate that every sample has dominated adds nothing in any of them.
        contenders = np.flatnonzero(self._undominated.any(axis=0))
        points, fronts = self._points[:, contenders], self._measured
        gains = _improvements(points, fronts) / self._volumes[:, None]
        chosen: list[int] = []
        added: list[float] = []
        for _ in range(min(size, len(contenders))):
            mean = gains.mean(axis=0)
            mean[chosen] = -1  # below any gain, so that none is chosen twice
            latest = int(mean.argmax())
            chosen.append(latest)
            added.append(float(mean[latest]))
            # Only samples in which it adds something have another frontier now.
            moved = np.flatnonzero(gains[:, latest] > 0)
            fronts = _extended(fronts, moved, points[:, latest])
            gains[moved] = _improvements(points[moved], fronts[moved]) / self._volumes[moved, None]
        return contenders[chosen], np.array(added)


def _fronts(points: Points) -> Points:
    """Frontiers below the reference point, by rising time, each filled up with it.

    Args:
        points: shape (samples, n, 2).

    Returns:
        Shape (samples, points of the longest frontier, 2).
    """
    kept = pareto_masks(points) & (points < CORNER).all(axis=-1)
    fronts = np.where(kept[..., None], points, CORNER)
    order = np.argsort(fronts[..., 0], axis=-1, kind="stable")[:, : kept.sum(axis=-1).max(initial=0)]
    return np.take_along_axis(fronts, order[..., None], axis=1)


def _extended(fronts: Points, moved: Indices, added: Points) -> Points:
    """Return `fronts` with the points `added`, shape (samples, 2), to those of the samples `moved`."""
    corner = np.full((len(fronts), 1, 2), CORNER)
    corner[moved, 0] = added[moved]
    return _fronts(np.concatenate((fronts, corner), axis=1))


def _areas(fronts: Points) -> Array:
    """Hypervolumes of frontiers as `_fronts` returns them, shape (samples,)."""
    rights = np.concatenate((fronts[:, 1:, 0], np.full((len(fronts), 1), CORNER)), axis=1)[:, : fronts.shape[1]]
    areas: Array = ((rights - fronts[..., 0]) * (CORNER - fronts[..., 1])).sum(axis=1)
    return areas


def _improvements(points: Points, fronts: Points) -> Array:
    """What each point alone would add to the hypervolume of its sample's frontier, shape (samples, n).

    A frontier is a staircase. A point adds, over every step to the right of its time, the height between its energy and
    the step.

    Args:
        points: shape (samples, n, 2).
        fronts: as `_fronts` returns them.
    """
    samples = len(fronts)
    lefts = np.concatenate((np.full((samples, 1), -np.inf), fronts[..., 0]), axis=1)
    rights = np.concatenate((fronts[..., 0], np.full((samples, 1), CORNER)), axis=1)
    ceilings = np.concatenate((np.full((samples, 1), CORNER), fronts[..., 1]), axis=1)
    widths = rights[:, None] - np.maximum(lefts[:, None], points[..., :1])
    heights = ceilings[:, None] - points[..., 1:]
    np.maximum(widths, 0, out=widths)
    np.maximum(heights, 0, out=heights)
    improvements: Array = np.einsum("spc,spc->sp", widths, heights)
    return improvements
