"""Heat: one thermal resistance and capacity, with leakage that grows with temperature.

A linear differential equation, so that seconds of heating cost one exponential:
dT/dt = (ambient + R (P + l (T - T_ref)) - T) / tau.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.coefficients import GpuCoefficients


@dataclass(frozen=True, slots=True)
class Interval:
    """A time of constant work, starting at `start_c`; of one chip, or of many with arrays of their numbers."""

    power_w: Array | float
    """Power of the work at the reference temperature."""
    start_c: Array | float
    ambient_c: float
    coefficients: GpuCoefficients

    def temperature_c(self, elapsed_s: Array | float) -> Array | float:
        """Temperature after `elapsed_s`."""
        final_c, rate = self._final_c, self._rate
        return final_c + (self.start_c - final_c) * np.exp(-rate * elapsed_s)

    def energy_j(self, elapsed_s: Array | float) -> Array | float:
        """Energy drawn after `elapsed_s`: the work's, and leakage above or below the reference."""
        final_c, rate, c = self._final_c, self._rate, self.coefficients
        degree_seconds = final_c * elapsed_s + (self.start_c - final_c) * -np.expm1(-rate * elapsed_s) / rate
        leakage_j = c.leakage_w_per_c * (degree_seconds - c.reference_temperature_c * elapsed_s)
        return self.power_w * elapsed_s + leakage_j

    @property
    def _feedback(self) -> float:
        return _feedback(self.coefficients)

    @property
    def _rate(self) -> float:
        return (1 - self._feedback) / self.coefficients.thermal_time_s

    @property
    def _final_c(self) -> Array | float:
        c = self.coefficients
        reference_power_w = self.power_w - c.leakage_w_per_c * c.reference_temperature_c
        return (self.ambient_c + c.thermal_resistance_c_per_w * reference_power_w) / (1 - self._feedback)


@dataclass(frozen=True, slots=True)
class BusyTime:
    """A time in which one GPU works, and what that was measured to take."""

    time_s: float
    energy_j: float
    temperature_c: float | None
    """Mean temperature of the GPU while the energy was measured; None where it is not known."""

    def __str__(self) -> str:
        """Return the time and what it was measured to take, for messages."""
        at = "" if self.temperature_c is None else f" at {self.temperature_c:.6g} degC"
        return f"{self.time_s:.6g} s and {self.energy_j:.6g} J{at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedWork:
    """What one GPU does over and over, such as its part of an iteration, and what that costs where it was measured."""

    period_s: float
    busy_s: float
    """Time of the work in one period; for the rest the GPU waits."""
    busy_j: float
    """Energy of the work, at the temperatures at which it was measured."""
    busy_degree_s: float
    """These temperatures in degC times the time of the work that each is of."""
    waiting_j: float
    """Energy of the rest of the period. It has no temperature: its power is that of GPUs that wait while they train."""

    def settled_c(self, ambient_c: float, coefficients: GpuCoefficients) -> float:
        """Return the mean temperature after many periods: the fixed point of T = ambient + R P(T).

        P(T) is the mean power of a period. It is linear in T: the work leaks `leakage_w_per_c` more for each degree
        above the temperature at which it was measured. What the temperature does within a period is left out.
        """
        c = coefficients
        at_zero_w = (self.busy_j - c.leakage_w_per_c * self.busy_degree_s + self.waiting_j) / self.period_s
        busy_feedback = _feedback(c) * self.busy_s / self.period_s
        return (ambient_c + c.thermal_resistance_c_per_w * at_zero_w) / (1 - busy_feedback)

    def settled_j(self, ambient_c: float, coefficients: GpuCoefficients) -> float:
        """Return the energy of one period at the temperature that the chip settles to."""
        warmer_degree_s = self.settled_c(ambient_c, coefficients) * self.busy_s - self.busy_degree_s
        return self.busy_j + coefficients.leakage_w_per_c * warmer_degree_s + self.waiting_j


def repeated_work(busy: Iterable[BusyTime], period_s: float, waiting_j: float) -> RepeatedWork | None:
    """Return what one GPU does in every period; None if a temperature of it is not known.

    Args:
        busy: all of its work in one period.
        period_s: time after which it begins again.
        waiting_j: its energy in the rest of the period.
    """
    busy_s = busy_j = busy_degree_s = 0.0
    for one in busy:
        if one.temperature_c is None:
            return None
        busy_s, busy_j = busy_s + one.time_s, busy_j + one.energy_j
        busy_degree_s += one.temperature_c * one.time_s
    return RepeatedWork(
        period_s=period_s,
        busy_s=busy_s,
        busy_j=busy_j,
        busy_degree_s=busy_degree_s,
        waiting_j=waiting_j,
    )


def window_temperature_c(before_c: float, after_c: float, window_s: float, coefficients: GpuCoefficients) -> float:
    """Return the mean temperature over a window of constant work, in which the chip settles exponentially.

    Args:
        before_c: at the start of the window.
        after_c: at its end.
        window_s: its length.
        coefficients: of the GPU; how fast it settles.
    """
    time_constants = window_s / coefficients.thermal_time_s * (1 - _feedback(coefficients))
    left = math.exp(-time_constants)
    if left > 0.99:  # noqa: PLR2004 - nearly a straight line, of which the end cannot be foreseen
        return (before_c + after_c) / 2
    final_c = (after_c - before_c * left) / (1 - left)
    return final_c + (before_c - final_c) * (1 - left) / time_constants


def mean_temperature_c(parts: Iterable[tuple[float, float | None]]) -> float | None:
    """Return the mean of temperatures, weighted with times; None if one is not known, or there are none.

    Args:
        parts: times in s, and temperatures in degC; those that take no time do not count.
    """
    time_s = degree_s = 0.0
    for part_s, temperature_c in parts:
        if not part_s:
            continue
        if temperature_c is None:
            return None
        time_s, degree_s = time_s + part_s, degree_s + part_s * temperature_c
    return degree_s / time_s if time_s else None


def _feedback(coefficients: GpuCoefficients) -> float:
    """Share of a degree that leaks back as heat; below 1, or the chip would run away."""
    return coefficients.thermal_resistance_c_per_w * coefficients.leakage_w_per_c
