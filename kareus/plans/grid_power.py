"""Power as the grid sees it: that of all GPUs, iteration after iteration, in means over a window of one second.

A plan knows the power of each instruction, which changes at once between two of them. Power supplies and meters
smooth that, so that what operators of sites limit is a mean over a window: its least and most, and how far it moves
from one window to the next.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.plans.document import Plan
from kareus.plans.power import power_steps
from kareus.plans.units import rounded, scaled

WINDOW_S = 1.0
"""Window of the means. Site meters and the ramp limits of operators count by the second."""
MOST_MEANS = 12
"""Of a line of means; longer iterations are shown in longer means."""


@dataclass(frozen=True)  # without slots, so that what is asked for is kept
class PowerSeries:
    """Power of all GPUs over one iteration that repeats; it holds from each edge to the next.

    Example:
        >>> series = PowerSeries(np.array([0.0, 1.0, 4.0]), np.array([500.0, 100.0]))
        >>> series.period_s, series.energy_j, series.mean_w
        (4.0, 800.0, 200.0)
        >>> series.seen_w(np.array([1.0, 1.5, 4.0]), window_s=1.0).tolist()
        [500.0, 300.0, 100.0]
    """

    edges_s: Array
    """Rising, from 0 to the end of the iteration; shape (n + 1,)."""
    powers_w: Array
    """Shape (n,)."""

    @property
    def period_s(self) -> float:
        """Time of an iteration."""
        return float(self.edges_s[-1])

    @cached_property
    def _until_j(self) -> Array:
        return np.concatenate(([0.0], np.cumsum(self.powers_w * np.diff(self.edges_s))))

    @property
    def energy_j(self) -> float:
        """Energy of an iteration."""
        return float(self._until_j[-1])

    @property
    def mean_w(self) -> float:
        """Mean power."""
        return self.energy_j / self.period_s

    def energy_until_j(self, moments_s: Array) -> Array:
        """Return the energy from 0 to each moment, in any iteration; negative before the first one."""
        laps = np.floor(moments_s / self.period_s)
        within_j = np.interp(moments_s - laps * self.period_s, self.edges_s, self._until_j)
        energy_j: Array = laps * self.energy_j + within_j
        return energy_j

    def seen_w(self, moments_s: Array, window_s: float = WINDOW_S) -> Array:
        """Return the mean power of the window that ends at each moment."""
        seen: Array = (self.energy_until_j(moments_s) - self.energy_until_j(moments_s - window_s)) / window_s
        return seen

    def __add__(self, other: "PowerSeries") -> "PowerSeries":
        """Both at once; they take equally long."""
        edges_s = np.union1d(self.edges_s, other.edges_s)
        middles_s = (edges_s[1:] + edges_s[:-1]) / 2
        return PowerSeries(edges_s, self.at_w(middles_s) + other.at_w(middles_s))

    def at_w(self, moments_s: Array) -> Array:
        """Return the power at moments of one iteration."""
        places = np.searchsorted(self.edges_s, moments_s, side="right") - 1
        return self.powers_w[np.clip(places, 0, len(self.powers_w) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPower:
    """What the grid sees of an iteration that repeats; of all GPUs."""

    mean_w: float
    least_w: float
    """Least mean of a window."""
    most_w: float
    ramp_w_per_s: float
    """Largest change of the mean from one window to the next, wherever the first begins, for each second."""

    @property
    def swing(self) -> float:
        """How far the means of windows lie apart, as a share of the mean power."""
        return (self.most_w - self.least_w) / self.mean_w

    @property
    def words(self) -> str:
        """Swing and ramp in words."""
        return f"swing {rounded(100 * self.swing)} %, largest ramp {scaled(self.ramp_w_per_s, 'W/s')}"


def power_series(plan: Plan, gpu: Gpu) -> PowerSeries:
    """Return the power of all GPUs of a plan over an iteration; its energy is the plan's."""
    return PowerSeries(*power_steps(plan, gpu))


def grid_power(series: PowerSeries, window_s: float = WINDOW_S) -> GridPower:
    """Return what the grid sees of a series, exactly.

    The mean over a window that moves is linear between the moments at which the window begins or ends at an edge, and
    so is its change from one window to the next: both have their extremes there.
    """
    knots_s = np.concatenate([series.edges_s + shift * window_s for shift in range(3)])
    seen_w, before_w = series.seen_w(knots_s, window_s), series.seen_w(knots_s - window_s, window_s)
    return GridPower(
        mean_w=series.mean_w,
        least_w=float(seen_w.min()),
        most_w=float(seen_w.max()),
        ramp_w_per_s=float(np.abs(seen_w - before_w).max()) / window_s,
    )


def power_line(series: PowerSeries) -> str:
    """Return what the grid sees in one line: the mean, its swing and largest ramp, and the power second by second."""
    seen = grid_power(series)
    seconds = max(1, -(-int(np.ceil(series.period_s)) // MOST_MEANS))
    ends_s = np.arange(seconds, series.period_s + seconds * (1 - 1e-9), seconds, dtype=np.float64)
    means = [f"{mean_w / 1e3:.2f}" for mean_w in series.seen_w(ends_s, float(seconds))]
    by = "second by second" if seconds == 1 else f"in means of {seconds} s"
    each = f"; {by} in kW: {', '.join(means)}" if len(means) > 1 else ""
    return f"all GPUs draw {scaled(seen.mean_w, 'W')} in the mean, {seen.words} (means of 1 s){each}"
