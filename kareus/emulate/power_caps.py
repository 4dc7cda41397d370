"""Power caps: the fastest plan of a fleet within a mean power of all its GPUs, waiting where that keeps the cap."""

import math
from collections.abc import Sequence
from typing import Any

from kareus.emulate.fleet import Scale, fleet_columns
from kareus.emulate.waiting import dynamic_plan, dynamic_problem, total_plan
from kareus.pipeline.solver.frontier import PlannedIteration
from kareus.pipeline.solver.problem import Problem
from kareus.plans.limits import fastest_under

COLUMNS = ("time_s", "waiting_s", "energy_j", "power_w", "points")


def power_cap_columns(gpu_cap_w: float, plans: Sequence[PlannedIteration], scale: Scale) -> dict[str, Any]:
    """Return the columns of `POWER_CAPS` for one cap; those of the plan are empty where even waiting draws more.

    Equal pipelines that wait for one another are fastest when each takes an equal share of the cap: a pipeline with
    more would only wait for the others.

    Args:
        gpu_cap_w: mean power that each GPU may draw.
        plans: of one pipeline; the one that is fastest within the cap, waiting included, is taken.
        scale: of the fleet.
    """
    cap_w, idle_w = gpu_cap_w * scale.gpus, scale.idle_power_w * scale.gpus
    waits_s = [_waiting_s(*scale.cost(plan.time_s, plan.energy_j), cap_w, idle_w) for plan in plans]
    time_s, n = min((plan.time_s + wait_s, n) for n, (wait_s, plan) in enumerate(zip(waits_s, plans, strict=True)))
    if math.isinf(time_s):
        return {"cap_w": cap_w, **dict.fromkeys(COLUMNS)}
    waiting_s, columns = waits_s[n], fleet_columns(scale, plans[n])
    time_s, energy_j = columns["time_s"] + waiting_s, columns["energy_j"] + idle_w * waiting_s
    return {
        "cap_w": cap_w,
        "time_s": time_s,
        "waiting_s": waiting_s,
        "energy_j": energy_j,
        "power_w": min(energy_j / time_s, cap_w),  # the same where it waits, but for rounding
        "points": columns["points"],
    }


def crossing_plan(
    gpu_cap_w: float, plans: Sequence[PlannedIteration], problem: Problem, scale: Scale
) -> list[PlannedIteration]:
    """Return the fastest plan found between the first of `plans` within a cap and the one before; none elsewhere.

    Args:
        gpu_cap_w: mean power that each GPU may draw.
        plans: of one pipeline, by rising time and falling power.
        problem: what one pipeline plans.
        scale: of the fleet.
    """
    cap_w = gpu_cap_w * scale.gpus
    first = next((n for n, plan in enumerate(plans) if fleet_columns(scale, plan)["power_w"] <= cap_w), 0)
    if first == 0:
        return []
    idle_w, pipeline_cap_w = scale.idle_power_w * scale.pipeline_gpus, gpu_cap_w * scale.pipeline_gpus
    allowance = (pipeline_cap_w * scale.exposed_s - scale.reduction_energy_j, pipeline_cap_w - idle_w)
    thirsty, frugal = (dynamic_plan(plan, idle_w) for plan in plans[first - 1 : first + 1])
    fastest = fastest_under(
        dynamic_problem(problem, idle_w),
        allowance,
        (thirsty.time_s, thirsty.energy_j),
        (frugal.time_s, frugal.energy_j),
    )
    return [] if fastest is None else [total_plan(fastest, idle_w)]


def _waiting_s(time_s: float, energy_j: float, cap_w: float, idle_w: float) -> float:
    """Return the seconds that a fleet waits after an iteration, so that its mean power keeps a cap."""
    excess_j = energy_j - cap_w * time_s
    if excess_j <= 0:
        return 0.0
    return excess_j / (cap_w - idle_w) if cap_w > idle_w else math.inf
