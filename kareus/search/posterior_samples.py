"""Joint samples of the costs of all candidates, and the mean hypervolume that measuring some of them would add."""

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Indices
from kareus.pareto import Points, hypervolume, hypervolume_improvement, pareto_front, pareto_mask

CORNER = np.ones(2)
"""The reference point in scaled axes."""


class PosteriorSamples:
    """Samples of the costs of candidates that may be measured and of those that have been."""

    def __init__(self, samples: NDArray[np.float64], offered: int, margin: float) -> None:
        """Scale each sample to its own frontier.

        Args:
            samples: (time, dynamic energy), shape (samples, offered + measured, 2).
            offered: candidates that may be measured; they come first.
            margin: reference point, as a multiple of a frontier's maxima.
        """
        self._samples = [_ScaledSample(sample, offered, margin) for sample in samples]

    @property
    def remaining(self) -> float:
        """Mean share of the hypervolume that measuring all candidates would add."""
        return float(np.mean([sample.remaining for sample in self._samples]))

    @property
    def chances(self) -> NDArray[np.float64]:
        """Share of the samples in which no candidate dominates it, of every candidate on offer."""
        chances: NDArray[np.float64] = np.mean([sample.undominated for sample in self._samples], axis=0)
        return chances

    def best(self, size: int) -> tuple[Indices, NDArray[np.float64]]:
        """Choose candidates greedily by mean hypervolume improvement, each given those chosen before it.

        Only candidates that are on the frontier of some sample are considered.

        Returns:
            Their positions among the candidates on offer, and the share of the hypervolume that each is to add.
        """
        # A candidate that every sample has dominated adds nothing in any of them.
        contenders = np.flatnonzero(self.chances)
        gains_by_sample = [_Gains(sample.points[contenders], sample.front, sample.volume) for sample in self._samples]
        chosen: list[int] = []
        added: list[float] = []
        for _ in range(min(size, len(contenders))):
            gains = np.mean([one.gains for one in gains_by_sample], axis=0)
            gains[chosen] = -1  # below any gain, so that none is chosen twice
            chosen.append(int(gains.argmax()))
            added.append(float(gains[chosen[-1]]))
            for one in gains_by_sample:
                one.measure(chosen[-1])
        return contenders[chosen], np.array(added)


class _ScaledSample:
    """One sample, in axes scaled to its frontier."""

    def __init__(self, sample: Points, offered: int, margin: float) -> None:
        mask = pareto_mask(sample)
        ideal, reference = sample[mask].min(axis=0), margin * sample[mask].max(axis=0)
        scaled = (sample - ideal) / (reference - ideal)
        self.undominated = mask[:offered]
        self.points: Points = scaled[:offered]
        self.front = pareto_front(scaled[offered:])
        """Frontier of what has been measured."""
        self.volume = hypervolume(scaled[mask], CORNER)
        self.remaining = 1 - hypervolume(self.front, CORNER) / self.volume


class _Gains:
    """Hypervolume that each candidate would still add in one sample, as more of them count as measured."""

    def __init__(self, points: Points, front: Points, volume: float) -> None:
        self._points, self._front, self._volume = points, front, volume
        self._improve()

    def measure(self, candidate: int) -> None:
        """Count a candidate as measured; one that adds nothing changes nothing."""
        if self.gains[candidate] > 0:
            self._front = pareto_front(np.vstack((self._front, self._points[candidate])))
            self._improve()

    def _improve(self) -> None:
        self.gains = hypervolume_improvement(self._points, self._front, CORNER) / self._volume
