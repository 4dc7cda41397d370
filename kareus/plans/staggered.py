"""Staggered replicas: data-parallel replicas that begin an iteration one after the other, so that they peak apart.

Replicas meet at the reduction of gradients, so that the first wait there for the last one, in every iteration: it takes
longer by all of the shift, in which each GPU waits. Replicas that share weights out meet in every instruction, and
cannot be shifted.
"""

from dataclasses import dataclass, replace

import numpy as np

from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import UPDATING
from kareus.model.parallelism import Sharding
from kareus.plans.document import Plan, StagePlan
from kareus.plans.grid_power import GridPower, PowerSeries, grid_power, power_series
from kareus.plans.idle_burn import LIMIT_ROUNDING, excess
from kareus.plans.selectors import Selector
from kareus.workload.config import Workload

MOST_SHARE = 0.25
"""Of an iteration, by which the last replica is shifted at most."""
SHIFTS = 25
"""That are tried, evenly spaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stagger:
    """Replicas that begin one after the other."""

    shift_s: float
    """By which the last begins later than the first, and an iteration takes longer."""
    series: PowerSeries
    """Power of all GPUs."""

    @property
    def seen(self) -> GridPower:
        """What the grid sees."""
        return grid_power(self.series)


def can_be_staggered(workload: Workload) -> bool:
    """Return whether replicas meet nowhere but at the end of an iteration."""
    shared = workload.parallelism
    return shared.dp > 1 and shared.sharding in (Sharding.NONE, Sharding.OPTIMIZER)


def staggered(plan: Plan, gpu: Gpu, replicas: int, shift_s: float) -> PowerSeries:
    """Return the power of all GPUs of replicas that begin evenly spaced over a shift.

    Args:
        plan: of all replicas at once.
        gpu: that runs it.
        replicas: two or more.
        shift_s: of the last one.
    """
    total: PowerSeries | None = None
    for own_s in np.linspace(0.0, shift_s, replicas).tolist():
        replica = power_series(_shifted(plan, replicas, own_s, shift_s), gpu)
        total = replica if total is None else total + replica
    assert total is not None
    return total


def least_stagger(plan: Plan, workload: Workload, selector: Selector) -> Stagger | None:
    """Return the least shift with which a plan keeps a limit on power over time; None where none does."""
    if not can_be_staggered(workload):
        return None
    for share in np.linspace(0.0, MOST_SHARE, SHIFTS + 1).tolist():
        shift_s = share * plan.prediction.time_s
        series = staggered(plan, workload.gpu, workload.parallelism.dp, shift_s)
        if excess(selector, grid_power(series)) <= LIMIT_ROUNDING:
            return Stagger(shift_s=shift_s, series=series)
    return None


def _shifted(plan: Plan, replicas: int, own_s: float, shift_s: float) -> Plan:
    """Return the plan of one replica, whose passes begin later by its shift, and whose update by that of the last."""

    def later(stage: StagePlan) -> StagePlan:
        moved = (
            replace(i, start_s=i.start_s + (shift_s if i.direction in UPDATING else own_s)) for i in stage.instructions
        )
        return replace(stage, instructions=tuple(moved))

    longer = replace(plan.prediction, time_s=plan.prediction.time_s + shift_s)
    return replace(plan, gpus=plan.gpus // replicas, prediction=longer, stages=tuple(map(later, plan.stages)))
