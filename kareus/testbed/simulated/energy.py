"""What work costs in energy at a clock: voltage, clock tree, arithmetic, HBM, links.

Dynamic power goes with V^2 f; V falls faster than linearly just below the maximum clock and is flat
below a knee near 1,000 MHz (A100). HBM energy scales with the core's voltage only in part.
"""

from kareus.partition.graph import Collective, Operator, OperatorKind
from kareus.testbed.simulated.laws import collective_hbm_bytes, hbm_bytes
from kareus.workload.config import Gpu


def relative_voltage(gpu: Gpu, frequency_mhz: float) -> float:
    """Core voltage at `frequency_mhz`, relative to that at maximum clock.

    A parabola in the distance from the maximum clock, followed down to its vertex or its floor.
    """
    c = gpu.coefficients
    vertex = c.voltage_slope / (2 * c.voltage_curvature)
    distance = min(1 - frequency_mhz / gpu.maximum_clock_mhz, vertex)
    return max(1 - c.voltage_slope * distance + c.voltage_curvature * distance**2, c.voltage_floor)


def clock_power_w(gpu: Gpu, frequency_mhz: float) -> float:
    """Power of the clock tree and everything that toggles with it, whatever runs."""
    v = relative_voltage(gpu, frequency_mhz)
    return gpu.coefficients.clock_power_w * v**2 * frequency_mhz / gpu.maximum_clock_mhz


def operator_energy_j(gpu: Gpu, operator: Operator, frequency_mhz: float) -> float:
    """Switching energy of `operator`: arithmetic and HBM traffic."""
    c = gpu.coefficients
    v = relative_voltage(gpu, frequency_mhz)
    per_flop = c.gemm_j_per_flop if operator.kind is OperatorKind.GEMM else c.attention_j_per_flop
    return operator.flops * per_flop * v**2 + hbm_bytes(operator) * _hbm_j_per_byte(gpu, v)


def collective_energy_j(gpu: Gpu, collective: Collective, frequency_mhz: float) -> float:
    """Switching energy of `collective` on one GPU: links and HBM traffic."""
    c = gpu.coefficients
    v = relative_voltage(gpu, frequency_mhz)
    links = collective.bus_bytes * (c.link_j_per_byte + c.link_core_j_per_byte * v**2)
    return links + collective_hbm_bytes(gpu, collective) * _hbm_j_per_byte(gpu, v)


def _hbm_j_per_byte(gpu: Gpu, relative_voltage_: float) -> float:
    return gpu.coefficients.hbm_j_per_byte + gpu.coefficients.hbm_core_j_per_byte * relative_voltage_**2
