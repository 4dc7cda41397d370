"""Layouts that others rule out: a frontier of known plans, and whether a bound lies behind it everywhere."""

from collections.abc import Iterable

import numpy as np

from kareus.adviser.bounds import Bound
from kareus.arrays import Array
from kareus.pareto import ROUNDING, pareto_front


class KnownPlans:
    """Times and energies of plans that there are."""

    def __init__(self) -> None:
        self._front: Array = np.empty((0, 2))

    def add(self, costs: Iterable[tuple[float, float]]) -> None:
        """Add plans, as (seconds, joules)."""
        self._front = pareto_front(np.array([*self._front.tolist(), *costs], dtype=np.float64).reshape(-1, 2))

    def rule_out(self, bound: Bound) -> bool:
        """Return whether a known plan takes neither longer nor more energy than whatever plan a bound leaves open."""
        if not len(self._front):
            return False
        known_s, known_j = self._front[:, 0] * (1 + ROUNDING), self._front[:, 1] * (1 + ROUNDING)
        least_j = np.append(np.inf, known_j)[np.searchsorted(known_s, bound.times_s, side="right")]
        return bool((least_j <= bound.between_j).all())
