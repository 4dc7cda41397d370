"""Knowledge of a search: the measurements and the time-only measurements taken so far."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Indices
from kareus.pareto import Points


@dataclass(frozen=True, slots=True)
class Dataset:
    """Measured candidates, in the order of measuring, and those whose time alone was measured."""

    candidates: Indices
    """Numbers of the candidates, shape (n,)."""
    time_s: NDArray[np.float64]
    energy_j: NDArray[np.float64]
    """Total energy of one GPU, shape (n,)."""
    static_power_w: float
    timed: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of the candidates with a time-only measurement, shape (m,); some may have been measured whole, too."""
    timed_time_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Times of those, shape (m,)."""
    repeated: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Numbers of measured candidates that were measured whole once more, shape (r,): they tell how noisy measurements
    are, and are no further data on costs."""
    repeated_time_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    repeated_energy_j: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def dynamic_energy_j(self) -> NDArray[np.float64]:
        """Energy less static power times time (`Gpu.static_power_w`)."""
        return self.energy_j - self.static_power_w * self.time_s

    @property
    def dynamic(self) -> Points:
        """(time, dynamic energy), shape (n, 2): the plane of the partition's frontier."""
        return np.column_stack((self.time_s, self.dynamic_energy_j))

    @property
    def total(self) -> Points:
        """(time, total energy), shape (n, 2)."""
        return np.column_stack((self.time_s, self.energy_j))
