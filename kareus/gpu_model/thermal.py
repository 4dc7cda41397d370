"""Heat: one thermal resistance and capacity, with leakage that grows with temperature.

A linear differential equation, so that seconds of heating cost one exponential:
dT/dt = (ambient + R (P + l (T - T_ref)) - T) / tau.
"""

import math
from dataclasses import dataclass

from kareus.gpu_model.coefficients import GpuCoefficients


@dataclass(frozen=True, slots=True)
class Interval:
    """A time of constant work, starting at `start_c`."""

    power_w: float
    """Power of the work at the reference temperature."""
    start_c: float
    ambient_c: float
    coefficients: GpuCoefficients

    def temperature_c(self, elapsed_s: float) -> float:
        """Temperature after `elapsed_s`."""
        final_c, rate = self._final_c, self._rate
        return final_c + (self.start_c - final_c) * math.exp(-rate * elapsed_s)

    def energy_j(self, elapsed_s: float) -> float:
        """Energy drawn after `elapsed_s`: the work's, and leakage above or below the reference."""
        final_c, rate, c = self._final_c, self._rate, self.coefficients
        degree_seconds = final_c * elapsed_s + (self.start_c - final_c) * -math.expm1(-rate * elapsed_s) / rate
        leakage_j = c.leakage_w_per_c * (degree_seconds - c.reference_temperature_c * elapsed_s)
        return self.power_w * elapsed_s + leakage_j

    @property
    def _feedback(self) -> float:
        """Share of a degree that leaks back as heat; below 1, or the chip would run away."""
        return self.coefficients.thermal_resistance_c_per_w * self.coefficients.leakage_w_per_c

    @property
    def _rate(self) -> float:
        return (1 - self._feedback) / self.coefficients.thermal_time_s

    @property
    def _final_c(self) -> float:
        c = self.coefficients
        reference_power_w = self.power_w - c.leakage_w_per_c * c.reference_temperature_c
        return (self.ambient_c + c.thermal_resistance_c_per_w * reference_power_w) / (1 - self._feedback)
