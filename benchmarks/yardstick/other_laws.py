"""A GPU of other laws than those of the GPU model, with coefficients of the same names and meanings.

What differs: collectives go first at the HBM and slow operators by their total demand; efficiency tails off smoothly
instead of by whole waves, and attention gains from a lower clock; compute and memory time overlap imperfectly; the
voltage is that of the top of a clock's step; and the power limit holds the mean power of a whole partition, not that
of each of its phases. The laws are plausible, not measured: they serve as a truth that a strategy which knows the GPU
model does not know.
"""

import math
from collections.abc import Sequence

import numpy as np

from kareus.gpu_model import energy
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.laws import Array, collective_hbm_bytes, collective_time_s, hbm_bytes, launches
from kareus.gpu_model.model import Behaviour, behaviour_of
from kareus.gpu_model.power_limit import CostRows, within_power_limit
from kareus.graph.records import Collective, Operator, OperatorKind, Partition, Program

GEMM_TILE = (128, 128)
"""Output tile of a GEMM."""
HALF_INNER = 25.0
"""Inner dimension at which a GEMM reaches half of its efficiency."""
VOLTAGE_STEP_MHZ = 150.0
"""Clocks that share one voltage."""
EXPOSED_SHARE = 0.2
"""Share of the shorter of compute and memory time that does not hide behind the longer."""
ATTENTION_CLOCK_EXPONENT = -0.15
"""Attention's efficiency goes with the clock to this power: waiting for memory costs fewer cycles at a lower clock."""
LEAST_HBM_SHARE = 0.3
"""What a collective leaves to an operator at the least."""
FREE_DEMAND = 0.6
"""Demand on HBM, as a share of its bandwidth, up to which traffic of both kinds causes no conflicts."""
CROWDED_SHARE = 0.25
"""Share of the SMs at which this law of crowding agrees with that of the GPU model."""


def run_program(gpu: Gpu, program: Program, frequency_mhz: Array | float) -> Behaviour:
    """As `kareus.gpu_model.model.run_program`, for partitions: programs without blocks."""
    requested_mhz = np.asarray(frequency_mhz, dtype=np.float64)

    def steady(clocks: Array) -> CostRows:
        costs = [_cost(gpu, s.operators, s.collective, clocks, s.sm_count, s.launch) for s in program.steps]
        total: CostRows = np.sum(costs, axis=0)
        return total

    return behaviour_of(within_power_limit(gpu, steady, requested_mhz), requested_mhz)


def run_schedules(
    gpu: Gpu, partition: Partition, frequency_mhz: Array, sm_count: Array, launch_index: Array
) -> Behaviour:
    """As `kareus.gpu_model.model.run_schedules`."""

    def steady(clocks: Array) -> CostRows:
        return _cost(gpu, partition.operators, partition.collective, clocks, sm_count, launch_index)

    return behaviour_of(within_power_limit(gpu, steady, frequency_mhz), frequency_mhz)


def _cost(
    gpu: Gpu,
    operators: Sequence[Operator],
    collective: Collective | None,
    frequency_mhz: Array,
    sm_count: Array | int,
    launch_index: Array | int,
) -> CostRows:
    time_s = step_time_s(gpu, operators, collective, frequency_mhz, sm_count, launch_index)
    voltage_mhz = top_of_step_mhz(gpu, frequency_mhz)
    clock_tree_w = (energy.idle_power_w(gpu, voltage_mhz) - gpu.static_power_w) * frequency_mhz / voltage_mhz
    work = [energy.operator_switching(gpu, o) for o in operators]
    work += [energy.collective_switching(gpu, collective)] if collective else []
    switching_j = sum((w.at_j(gpu, voltage_mhz) for w in work), np.zeros_like(time_s))
    return np.array([time_s, switching_j + (gpu.static_power_w + clock_tree_w) * time_s, frequency_mhz * time_s])


def top_of_step_mhz(gpu: Gpu, frequency_mhz: Array) -> Array:
    """The highest clock that has the voltage of `frequency_mhz`; steps count down from the maximum clock."""
    steps = np.floor((gpu.maximum_clock_mhz - frequency_mhz) / VOLTAGE_STEP_MHZ)
    return gpu.maximum_clock_mhz - steps * VOLTAGE_STEP_MHZ


def step_time_s(
    gpu: Gpu,
    operators: Sequence[Operator],
    collective: Collective | None,
    frequency_mhz: Array,
    sm_count: Array | int,
    launch_index: Array | int,
) -> Array:
    """Time of `operators` in order and of `collective` beside or after them; arguments as in the GPU model."""
    every_sm = np.full_like(frequency_mhz, gpu.sm_count)
    alone_s = [_operator_s(gpu, o, frequency_mhz, every_sm, 1.0) for o in operators]
    if collective is None:
        return sum(alone_s, np.zeros_like(frequency_mhz))
    taken = np.asarray(sm_count, dtype=np.float64)
    elapsed_s, left = np.zeros_like(frequency_mhz), np.ones_like(frequency_mhz)
    for position, operator in enumerate(operators):
        operator_s, collective_s = _beside(gpu, operator, collective, frequency_mhz, taken)
        shared_s = np.where(launch_index <= position, np.minimum(operator_s, left * collective_s), 0.0)
        left = left - shared_s / collective_s
        elapsed_s = elapsed_s + shared_s + (1 - shared_s / operator_s) * alone_s[position]
    return elapsed_s + left * collective_time_s(gpu, collective, frequency_mhz, taken)


def _beside(
    gpu: Gpu, operator: Operator, collective: Collective, frequency_mhz: Array, sm_count: Array
) -> tuple[Array, Array]:
    """Times of both if they ran beside each other throughout; the collective is served first."""
    available = gpu.hbm_gb_per_s * 1e9 * gpu.coefficients.hbm_efficiency
    collective_s = collective_time_s(gpu, collective, frequency_mhz, sm_count)
    collective_demand = np.minimum(1.0, collective_hbm_bytes(gpu, collective) / collective_s / available)
    share = np.maximum(LEAST_HBM_SHARE, 1 - collective_demand)
    operator_s = _operator_s(gpu, operator, frequency_mhz, gpu.sm_count - sm_count, share)
    operator_demand = hbm_bytes(gpu, operator) / operator_s / available
    excess = np.maximum(0.0, operator_demand + collective_demand - FREE_DEMAND)
    crowding = gpu.coefficients.crowding * (sm_count / gpu.sm_count) ** 2 / CROWDED_SHARE
    slower = 1 + 4 * gpu.coefficients.contention * excess**2
    return operator_s * slower * (1 + crowding), collective_s * (1 + gpu.coefficients.contention * operator_demand)


def _operator_s(gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array, hbm_share: Array | float) -> Array:
    filled = sm_count / (gpu.coefficients.hbm_saturating_share * gpu.sm_count)
    saturation = filled / (1 + filled**4) ** 0.25
    bytes_per_s = gpu.hbm_gb_per_s * 1e9 * gpu.coefficients.hbm_efficiency * saturation * hbm_share
    busy_s = (operator.bytes_read + operator.bytes_written) / bytes_per_s
    if operator.kind is not OperatorKind.MEMORY:
        efficiency = _efficiency(gpu, operator, frequency_mhz, sm_count)
        compute_s = operator.flops / (gpu.peak_flops(frequency_mhz, sm_count) * efficiency)
        busy_s = np.maximum(compute_s, busy_s) + EXPOSED_SHARE * np.minimum(compute_s, busy_s)
    copies_s = operator.copied_bytes / bytes_per_s
    return busy_s + copies_s + launches(gpu, operator) * gpu.coefficients.kernel_overhead_s


def _efficiency(gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array) -> Array:
    c = gpu.coefficients
    if operator.kind is not OperatorKind.GEMM:
        forward = operator.kind is OperatorKind.ATTENTION
        most = c.attention_forward_efficiency if forward else c.attention_backward_efficiency
        return most * (frequency_mhz / gpu.maximum_clock_mhz) ** ATTENTION_CLOCK_EXPONENT
    rows, columns, inner = operator.shape
    tiles = math.ceil(rows / GEMM_TILE[0]) * math.ceil(columns / GEMM_TILE[1])
    return c.gemm_efficiency * -math.expm1(-math.log(2) * inner / HALF_INNER) * tiles / (tiles + sm_count / 2)
