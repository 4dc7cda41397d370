"""Concurrent progress of one run of operators and one collective that share SMs, HBM and links.

Between two events (an operator ends, the collective starts or ends) everything progresses at a constant rate: while the
collective runs, operators keep the SMs that it leaves; when both together want more HBM bandwidth than there is, each
gets a share in proportion to its demand; and traffic of both kinds at once costs both something on top (row-buffer and
L2 conflicts). The host launches ahead, at a rate that no clock of the GPU changes, and short kernels wait for it. All
candidates of a partition take their events together, as elements of arrays.
"""

from collections.abc import Sequence

import numpy as np

from kareus.partition.graph import Collective, Operator
from kareus.testbed.simulated import laws
from kareus.testbed.simulated.laws import Array
from kareus.workload.gpu import Gpu

_DONE = 1e-12
"""Share of work left below which it counts as done (rounding)."""


def step_time_s(
    gpu: Gpu,
    operators: Sequence[Operator],
    collective: Collective | None,
    frequency_mhz: Array,
    sm_count: Array | int,
    launch: Array | int,
) -> Array:
    """Time of `operators` in order and of `collective` beside or after them, at a steady clock.

    Args:
        gpu: what runs them.
        operators: run one after the other.
        collective: starts together with one operator, or after the last.
        frequency_mhz: SM clock, one number or an array; the next two are of its shape or one number.
        sm_count: SMs of the collective.
        launch: index of the operator with which it starts.
    """
    every_sm = np.asarray(gpu.sm_count, dtype=np.float64)
    elapsed_s = np.zeros_like(frequency_mhz)
    if collective is None:
        alone_s = sum((laws.operator_time_s(gpu, o, frequency_mhz, every_sm) for o in operators), elapsed_s)
        return _fed(gpu, operators, None, alone_s)
    taken = np.asarray(sm_count, dtype=np.float64)
    left = np.ones_like(frequency_mhz)
    """Share of the collective that is still to do."""
    for position, operator in enumerate(operators):
        alone_s = laws.operator_time_s(gpu, operator, frequency_mhz, every_sm)
        running = (launch <= position) & (left > _DONE)
        if not running.any():
            elapsed_s = elapsed_s + alone_s
            continue
        beside_s, collective_s = _times_beside(gpu, operator, collective, frequency_mhz, taken)
        ends_s = left * collective_s
        outlasts = beside_s <= ends_s
        shared_s = np.where(outlasts, beside_s, ends_s + (1 - ends_s / beside_s) * alone_s)
        elapsed_s = elapsed_s + np.where(running, shared_s, alone_s)
        left = np.where(running, np.where(outlasts, left - beside_s / collective_s, 0.0), left)
    exposed_s = np.maximum(left, 0.0) * laws.collective_time_s(gpu, collective, frequency_mhz, taken)
    return _fed(gpu, operators, collective, elapsed_s + np.where(left > _DONE, exposed_s, 0.0))


def _fed(gpu: Gpu, operators: Sequence[Operator], collective: Collective | None, device_s: Array) -> Array:
    """Time of work that takes `device_s` once launched, as fast as the host launches its kernels."""
    launches = sum(o.launches for o in operators) + (collective is not None)
    return laws.longer_s(device_s, launches * gpu.coefficients.host_launch_s)


def _times_beside(
    gpu: Gpu, operator: Operator, collective: Collective, frequency_mhz: Array, sm_count: Array
) -> tuple[Array, Array]:
    """Times that operator and collective would take if they ran beside each other throughout."""
    remaining = gpu.sm_count - sm_count
    operator_s = laws.operator_time_s(gpu, operator, frequency_mhz, remaining)
    collective_s = laws.collective_time_s(gpu, collective, frequency_mhz, sm_count)
    available = laws.hbm_bytes_per_s(gpu, np.asarray(gpu.sm_count, dtype=np.float64))
    operator_demand = laws.hbm_bytes(operator) / operator_s / available
    collective_demand = laws.collective_hbm_bytes(gpu, collective) / collective_s / available
    demand = np.maximum(operator_demand + collective_demand, 1.0)
    fair_share = np.where(demand > 1, operator_demand / demand, 1.0)
    operator_s = laws.operator_time_s(gpu, operator, frequency_mhz, remaining, hbm_share=fair_share)
    conflict = 1 + gpu.coefficients.contention * np.minimum(1.0, operator_demand) * np.minimum(1.0, collective_demand)
    crowding = 1 + gpu.coefficients.crowding * sm_count / gpu.sm_count
    return operator_s * conflict * crowding, collective_s * demand * conflict
