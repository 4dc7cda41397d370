"""Concurrent progress of one run of operators and one collective that share SMs, HBM and links.

Between two events (an operator ends, the collective starts or ends) everything progresses at a constant
rate: while the collective runs, operators keep the SMs that it leaves; when both together want more HBM
bandwidth than there is, each gets a share in proportion to its demand; and traffic of both kinds at once
costs both something on top (row-buffer and L2 conflicts).
"""

from kareus.partition.graph import Collective, Operator
from kareus.testbed.program import Step
from kareus.testbed.simulated import laws
from kareus.workload.config import Gpu

_DONE = 1e-12
"""Share of work left below which it counts as done (rounding)."""


def step_time_s(gpu: Gpu, step: Step, frequency_mhz: float) -> float:
    """Time of one step at a steady clock."""
    elapsed_s = 0.0
    collective_left = 1.0 if step.collective else 0.0
    for position, operator in enumerate(step.operators):
        if step.collective is None or position < step.launch or collective_left <= _DONE:
            elapsed_s += laws.operator_time_s(gpu, operator, frequency_mhz, gpu.sm_count)
            continue
        beside_s, collective_beside_s = _times_beside(gpu, operator, step.collective, frequency_mhz, step.sm_count)
        until_collective_ends_s = collective_left * collective_beside_s
        if beside_s <= until_collective_ends_s:
            elapsed_s += beside_s
            collective_left -= beside_s / collective_beside_s
        else:
            operator_left = 1 - until_collective_ends_s / beside_s
            elapsed_s += until_collective_ends_s
            elapsed_s += operator_left * laws.operator_time_s(gpu, operator, frequency_mhz, gpu.sm_count)
            collective_left = 0.0
    if step.collective is not None and collective_left > _DONE:
        elapsed_s += collective_left * laws.collective_time_s(gpu, step.collective, frequency_mhz, step.sm_count)
    return elapsed_s


def _times_beside(
    gpu: Gpu, operator: Operator, collective: Collective, frequency_mhz: float, sm_count: int
) -> tuple[float, float]:
    """Times that operator and collective would take if they ran beside each other throughout."""
    remaining = gpu.sm_count - sm_count
    operator_s = laws.operator_time_s(gpu, operator, frequency_mhz, remaining)
    collective_s = laws.collective_time_s(gpu, collective, frequency_mhz, sm_count)
    available = laws.hbm_bytes_per_s(gpu, gpu.sm_count)
    operator_demand = laws.hbm_bytes(operator) / operator_s / available
    collective_demand = laws.collective_hbm_bytes(gpu, collective) / collective_s / available
    demand = operator_demand + collective_demand
    if demand > 1:
        operator_s = laws.operator_time_s(gpu, operator, frequency_mhz, remaining, hbm_share=operator_demand / demand)
        collective_s *= demand
    conflict = 1 + gpu.coefficients.contention * min(1.0, operator_demand) * min(1.0, collective_demand)
    return operator_s * conflict, collective_s * conflict
