"""What work costs in energy at a clock: voltage, clock tree, arithmetic, HBM, links.

Dynamic power goes with V^2 f; V falls faster than linearly just below the maximum clock and is flat below a knee near
1,000 MHz (A100). HBM energy scales with the core's voltage only in part. Clocks may be numbers or arrays.
"""

from collections.abc import Sequence

import numpy as np

from kareus.partition.graph import Collective, Operator, OperatorKind
from kareus.testbed.simulated.laws import Array, collective_hbm_bytes, hbm_bytes
from kareus.workload.gpu import Gpu


def relative_voltage(gpu: Gpu, frequency_mhz: Array) -> Array:
    """Core voltage at `frequency_mhz`, relative to that at maximum clock.

    A parabola in the distance from the maximum clock, followed down to its vertex or its floor.
    """
    c = gpu.coefficients
    vertex = c.voltage_slope / (2 * c.voltage_curvature)
    distance = np.minimum(1 - frequency_mhz / gpu.maximum_clock_mhz, vertex)
    return np.maximum(1 - c.voltage_slope * distance + c.voltage_curvature * distance**2, c.voltage_floor)


def idle_power_w(gpu: Gpu, frequency_mhz: Array) -> Array:
    """Power whatever runs: static, and the clock tree with everything that toggles with it."""
    v = relative_voltage(gpu, frequency_mhz)
    return gpu.static_power_w + gpu.coefficients.clock_power_w * v**2 * frequency_mhz / gpu.maximum_clock_mhz


def switching_j(gpu: Gpu, operators: Sequence[Operator], collective: Collective | None, frequency_mhz: Array) -> Array:
    """Energy of the work itself on one GPU: arithmetic, HBM traffic and link traffic, however long it takes."""
    c = gpu.coefficients
    gemm_flops = sum(o.flops for o in operators if o.kind is OperatorKind.GEMM)
    other_flops = sum(o.flops for o in operators if o.kind is not OperatorKind.GEMM)
    moved_bytes: float = sum(hbm_bytes(o) for o in operators)
    core_j = gemm_flops * c.gemm_j_per_flop + other_flops * c.attention_j_per_flop
    fixed_j = 0.0
    if collective is not None:
        moved_bytes += collective_hbm_bytes(gpu, collective)
        core_j += collective.bus_bytes * c.link_core_j_per_byte
        fixed_j += collective.bus_bytes * c.link_j_per_byte
    core_j += moved_bytes * c.hbm_core_j_per_byte
    fixed_j += moved_bytes * c.hbm_j_per_byte
    return fixed_j + core_j * relative_voltage(gpu, frequency_mhz) ** 2
