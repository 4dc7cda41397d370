"""Energy of work at a clock: voltage, clock tree, arithmetic, HBM, links.

Dynamic power goes with V^2 f; V falls faster than linearly just below the maximum clock and is flat below a knee near
1,000 MHz (A100). HBM energy scales with the core's voltage only in part. Clocks may be numbers or arrays.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model import attention
from kareus.gpu_model.coefficients import acts
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.laws import attention_shape, collective_hbm_bytes, hbm_bytes
from kareus.graph.number_formats import FORMATS, Precision, TensorCores
from kareus.graph.records import Collective, Operator, OperatorKind


def relative_voltage(gpu: Gpu, frequency_mhz: Array) -> Array:
    """Return the core voltage at `frequency_mhz`, relative to that at maximum clock.

    A parabola in the distance from the maximum clock, followed down to its vertex or its floor.
    """
    c = gpu.coefficients
    vertex = c.voltage_slope / (2 * c.voltage_curvature)
    distance = np.minimum(1 - frequency_mhz / gpu.maximum_clock_mhz, vertex)
    return np.maximum(1 - c.voltage_slope * distance + c.voltage_curvature * distance**2, c.voltage_floor)


def resting_power_w(gpu: Gpu) -> float:
    """Return the power of a chip at its reference temperature and least voltage whose clock tree is still."""
    return cast(float, _resting_power_w(gpu, gpu.coefficients.voltage_floor))


def _resting_power_w(gpu: Gpu, voltage: Array | float) -> Array | float:
    """Power of a chip whose clock tree is still: leakage goes with a power of the voltage of its core."""
    c = gpu.coefficients
    if not acts(c.leakage_exponent):
        return gpu.static_power_w + c.warm_leakage_w
    leaking, least = np.power(voltage, c.leakage_exponent), np.power(c.voltage_floor, c.leakage_exponent)
    resting_w: Array = gpu.static_power_w + c.warm_leakage_w * leaking + c.core_leakage_w * (leaking - least)
    return resting_w


def idle_power_w(gpu: Gpu, frequency_mhz: Array) -> Array:
    """Return the power that does not depend on the work: static, and the clock tree with all that toggles with it."""
    return _idle_power_w(gpu, frequency_mhz, relative_voltage(gpu, frequency_mhz))


def _idle_power_w(gpu: Gpu, frequency_mhz: Array, voltage: Array, clocked: Array | float = 1.0) -> Array:
    clock_w = gpu.coefficients.clock_power_w * clocked
    return _resting_power_w(gpu, voltage) + clock_w * voltage**2 * frequency_mhz / gpu.maximum_clock_mhz


def held_power_w(gpu: Gpu, sm_count: Array | float, frequency_mhz: Array) -> Array:
    """Return the power of the SMs that a collective holds, which poll and copy for as long as it is in flight."""
    squared_voltage = relative_voltage(gpu, frequency_mhz) ** 2
    return sm_count * gpu.coefficients.collective_sm_w * squared_voltage * frequency_mhz / gpu.maximum_clock_mhz


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

    def busy_j(self, gpu: Gpu, frequency_mhz: Array, time_s: Array, clocked: Array | float = 1.0) -> Array:
        """Return the energy at a clock of the work, and of what does not depend on it in the time that it takes.

        `clocked` is the share of the clock tree's power that is not gated meanwhile.
        """
        voltage = relative_voltage(gpu, frequency_mhz)
        idle_w = _idle_power_w(gpu, frequency_mhz, voltage, clocked)
        return self._at_voltage_j(voltage**2) + idle_w * time_s

    def _at_voltage_j(self, squared_voltage: Array) -> Array:
        return self.fixed_j + self.core_j * squared_voltage


def operator_switching(gpu: Gpu, operator: Operator) -> Switching:
    """Return the energy of an operator: arithmetic and HBM traffic."""
    c = gpu.coefficients
    if operator.kind in (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM):
        core_j: Array | float = operator.flops * product_j_per_flop(gpu, operator.precision)
    elif operator.kind is OperatorKind.MEMORY:
        core_j = operator.flops * c.attention_j_per_flop
    else:  # a slower kernel draws the power of a fast one: it issues more instructions for the same products
        core_j = c.attention_slowdown * attention_core_j(gpu, attention_shape(operator), operator.flops)
    return Switching(core_j, 0.0) + _hbm_switching(gpu, hbm_bytes(gpu, operator))


def product_j_per_flop(gpu: Gpu, precision: Precision, *, is_grouped: bool = False) -> Array | float:
    """Return the energy of an FLOP of a product in a number format, at maximum voltage."""
    c, units = gpu.coefficients, FORMATS[precision].units
    j_per_flop = c.gemm_j_per_flop * (c.grouped_energy_share if is_grouped else 1.0)
    if units is TensorCores.BF16:
        return j_per_flop
    j_per_flop = j_per_flop * (c.fp4_energy_share if units is TensorCores.FP4 else c.fp8_energy_share)
    if not is_grouped:
        return j_per_flop
    blockwise = precision is Precision.FP8_BLOCKWISE
    return j_per_flop * (c.grouped_blockwise_energy_share if blockwise else c.grouped_fp8_energy_share)


def attention_core_j(gpu: Gpu, shape: attention.AttentionShape, flops: Array | float) -> Array:
    """Return the energy of attention's arithmetic, or of its gradient's, on all scores that kernels compute.

    Args:
        gpu: GPU that runs it.
        shape: its sizes.
        flops: of the scores that count.
    """
    c = gpu.coefficients
    values = np.asarray(shape.batch) * np.asarray(shape.heads) * attention.scores(shape)
    core_j: Array = (flops * c.attention_j_per_flop + values * c.softmax_j) * attention.computed_share(gpu, shape)
    return core_j


def collective_switching(gpu: Gpu, collective: Collective) -> Switching:
    """Return the energy of a collective: link and HBM traffic."""
    c, bus_bytes = gpu.coefficients, collective.bus_bytes
    links = Switching(bus_bytes * c.link_core_j_per_byte, bus_bytes * c.link_j_per_byte)
    return links + _hbm_switching(gpu, collective_hbm_bytes(gpu, collective))


def _hbm_switching(gpu: Gpu, moved_bytes: Array | float) -> Switching:
    c = gpu.coefficients
    return Switching(moved_bytes * c.hbm_core_j_per_byte, moved_bytes * c.hbm_j_per_byte)
