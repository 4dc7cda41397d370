"""Energy of work at a clock: voltage, clock tree, arithmetic, HBM, links.

Dynamic power goes with V^2 f; V falls faster than linearly just below the maximum clock and is flat below a knee near
1,000 MHz (A100). HBM energy scales with the core's voltage only in part. Clocks may be numbers or arrays.
"""

from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.laws import collective_hbm_bytes, hbm_bytes
from kareus.graph.records import Collective, Fp8Product, Operator, OperatorKind


def relative_voltage(gpu: Gpu, frequency_mhz: Array) -> Array:
    """Return the core voltage at `frequency_mhz`, relative to that at maximum clock.

    A parabola in the distance from the maximum clock, followed down to its vertex or its floor.
    """
    c = gpu.coefficients
    vertex = c.voltage_slope / (2 * c.voltage_curvature)
    distance = np.minimum(1 - frequency_mhz / gpu.maximum_clock_mhz, vertex)
    return np.maximum(1 - c.voltage_slope * distance + c.voltage_curvature * distance**2, c.voltage_floor)


def idle_power_w(gpu: Gpu, frequency_mhz: Array) -> Array:
    """Return the power that does not depend on the work: static, and the clock tree with all that toggles with it."""
    return _idle_power_w(gpu, frequency_mhz, relative_voltage(gpu, frequency_mhz) ** 2)


def _idle_power_w(gpu: Gpu, frequency_mhz: Array, squared_voltage: Array) -> Array:
    return gpu.static_power_w + gpu.coefficients.clock_power_w * squared_voltage * frequency_mhz / gpu.maximum_clock_mhz


@dataclass(frozen=True, slots=True)
class Switching:
    """Energy of work itself on one GPU: arithmetic, HBM traffic and link traffic, however long it takes."""

    core_j: Array | float
    """Energy that scales with the square of the core's voltage, at the voltage of the maximum clock."""
    fixed_j: Array | float
    """Energy that does not depend on the voltage."""

    def __mul__(self, share: Array | float) -> "Switching":
        """Return the energy of a share of the work."""
        return Switching(self.core_j * share, self.fixed_j * share)

    def __add__(self, other: "Switching") -> "Switching":
        """Return the energy of both."""
        return Switching(self.core_j + other.core_j, self.fixed_j + other.fixed_j)

    def at_j(self, gpu: Gpu, frequency_mhz: Array) -> Array:
        """Return the energy at a clock."""
        return self._at_voltage_j(relative_voltage(gpu, frequency_mhz) ** 2)

    def busy_j(self, gpu: Gpu, frequency_mhz: Array, time_s: Array) -> Array:
        """Return the energy at a clock of the work, and of what does not depend on it in the time that it takes."""
        squared_voltage = relative_voltage(gpu, frequency_mhz) ** 2
        return self._at_voltage_j(squared_voltage) + _idle_power_w(gpu, frequency_mhz, squared_voltage) * time_s

    def _at_voltage_j(self, squared_voltage: Array) -> Array:
        return self.fixed_j + self.core_j * squared_voltage


def operator_switching(gpu: Gpu, operator: Operator) -> Switching:
    """Return the energy of an operator: arithmetic and HBM traffic."""
    c = gpu.coefficients
    flop_j = c.gemm_j_per_flop if operator.kind is OperatorKind.GEMM else c.attention_j_per_flop
    if isinstance(operator, Fp8Product):
        flop_j = flop_j * c.fp8_energy_share
    return Switching(operator.flops * flop_j, 0.0) + _hbm_switching(gpu, hbm_bytes(operator))


def collective_switching(gpu: Gpu, collective: Collective) -> Switching:
    """Return the energy of a collective: link and HBM traffic."""
    c, bus_bytes = gpu.coefficients, collective.bus_bytes
    links = Switching(bus_bytes * c.link_core_j_per_byte, bus_bytes * c.link_j_per_byte)
    return links + _hbm_switching(gpu, collective_hbm_bytes(gpu, collective))


def _hbm_switching(gpu: Gpu, moved_bytes: float) -> Switching:
    c = gpu.coefficients
    return Switching(moved_bytes * c.hbm_core_j_per_byte, moved_bytes * c.hbm_j_per_byte)
