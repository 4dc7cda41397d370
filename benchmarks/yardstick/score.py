"""Scores: how much of the exhaustive frontier's hypervolume a search has, and what it paid for that.

Points are noise-free, in the plane (time, dynamic energy). The reference point is 1.1 times the largest values of the
exhaustive frontier; both axes are scaled to [ideal, reference].
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.pareto import Points, hypervolume, pareto_front

REFERENCE_MARGIN = 1.1
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One search, measurement by measurement."""

    gpu_s: NDArray[np.float64]
    """Virtual GPU-seconds spent up to and with each measurement, shape (n,)."""
    shares: NDArray[np.float64]
    """Share of the exhaustive hypervolume after each, shape (n,); never falls."""

    def gpu_s_to(self, share: float) -> float:
        """What it took to have `share` of the hypervolume; infinite if the search ended before."""
        reached = self.shares >= share - _ROUNDING
        return float(self.gpu_s[reached.argmax()]) if reached.any() else math.inf


def hypervolume_shares(truth: Points, measured: NDArray[np.int64]) -> NDArray[np.float64]:
    """Share of the exhaustive hypervolume after each measurement, shape (n,).

    Args:
        truth: noise-free (time, dynamic energy) of every candidate.
        measured: numbers of the candidates in the order of measuring, shape (n,).
    """
    front = pareto_front(truth)
    ideal, reference = front.min(axis=0), REFERENCE_MARGIN * front.max(axis=0)
    scaled = (truth - ideal) / (reference - ideal)
    whole = hypervolume(scaled, np.ones(2))
    seen = [hypervolume(scaled[measured[: n + 1]], np.ones(2)) for n in range(len(measured))]
    return np.array(seen) / whole


def gpu_time_ratio(ours: Trajectory, paper: Trajectory) -> float:
    """GPU-seconds of ours over those of `paper`, each to the hypervolume that `paper` ends with.

    Both are counted up to the measurement that reaches it: what `paper` spends after its last improvement does not make
    ours look better. Infinite if ours ends below it.
    """
    target = float(paper.shares[-1])
    return ours.gpu_s_to(target) / paper.gpu_s_to(target)


def gpu_time_ratio_to_end(ours: Trajectory, paper: Trajectory) -> float:
    """As `gpu_time_ratio`, over everything that `paper` spends until it stops."""
    return ours.gpu_s_to(float(paper.shares[-1])) / float(paper.gpu_s[-1])
