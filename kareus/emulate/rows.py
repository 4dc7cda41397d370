"""Rows of a fleet's tables: every method's frontier, and what stragglers, power caps and hours make of it.

Beside a slow pipeline the others take the plan that just meets it (the use case of Perseus). Under a power cap the
fleet runs its fastest plan within a mean power of all its GPUs, waiting where that keeps the cap.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kareus.artifacts.tables import Row
from kareus.emulate.fleet import Scale, fleet_columns, identity, scale_of
from kareus.emulate.frontiers import MethodFrontier
from kareus.emulate.hours import HourlyProblem, HourShare, charge_of, energy_j, hourly, iterations, reachable, steady
from kareus.emulate.joined import plan_beside_slow_pipeline
from kareus.emulate.resolve import Fleet
from kareus.emulate.waiting import adopted, dynamic_plan, dynamic_problem, total_plan
from kareus.gpu_model.waiting import total_energy_j
from kareus.pareto import Mask, pareto_mask
from kareus.pipeline.methods import method_named
from kareus.pipeline.solver.frontier import PlannedIteration, sound_bound_j
from kareus.pipeline.solver.problem import Problem
from kareus.plans.limits import fastest_under
from kareus.plans.series import HourlySeries


def fleet_rows(fleet: Fleet, frontiers: Iterable[MethodFrontier]) -> list[Row]:
    """Rows of `FLEET`."""
    scale = scale_of(fleet)
    return [
        {**identity(fleet, frontier.method), "plan": number, **fleet_columns(scale, plan), "on_frontier": bool(is_best)}
        for frontier in frontiers
        for number, (plan, is_best) in enumerate(zip(frontier.plans, _on_frontier(frontier), strict=True))
    ]


def _on_frontier(frontier: MethodFrontier) -> Mask:
    return pareto_mask(np.array([(plan.time_s, plan.energy_j) for plan in frontier.plans]))


def straggler_rows(fleet: Fleet, frontiers: Iterable[MethodFrontier]) -> list[Row]:
    """Rows of `STRAGGLERS`."""
    scale = scale_of(fleet)
    return [
        {
            **identity(fleet, frontier.method),
            **straggler_columns(slowdown, frontier.plans[0], frontier.problem, scale, frontier.joined),
        }
        for frontier in frontiers
        for slowdown in fleet.emulation.stragglers
    ]


def power_cap_rows(fleet: Fleet, frontiers: Sequence[MethodFrontier]) -> list[Row]:
    """Rows of `POWER_CAPS`; those of a cap that nothing keeps are empty."""
    scale, rows = scale_of(fleet), []
    for gpu_cap_w in fleet.gpu_caps_w:
        crossing = {
            frontier.method: crossing_plan(gpu_cap_w, frontier.plans, frontier.problem, scale) for frontier in frontiers
        }
        for frontier in frontiers:
            plans = [*frontier.plans, *crossing[frontier.method]]
            if method_named(frontier.method).has_frontier:
                plans += [
                    run
                    for other in frontiers
                    for plan in crossing[other.method]
                    for run in adopted(plan, other.problem, frontier.problem)
                ]
            rows.append({**identity(fleet, frontier.method), **power_cap_columns(gpu_cap_w, plans, scale)})
    return rows


def hour_rows(fleet: Fleet, frontiers: Sequence[MethodFrontier], series: HourlySeries) -> list[Row]:
    """Rows of `HOURS`; one of the policy `none` for a method that is too slow, with the most that it can do."""
    rows: list[Row] = []
    for frontier in frontiers:
        work = _work(fleet, frontier)
        if work.iterations > reachable(work, series):
            rows.append({**identity(fleet, frontier.method), **_too_slow(work, series)})
            continue
        for policy, slots in (("hourly", hourly(work, series)), ("steady", steady(work, series))):
            of_policy = {**identity(fleet, frontier.method), "policy": policy}
            rows += [{**of_policy, **_hour_columns(work, series, slot)} for slot in slots]
    return rows


def _too_slow(work: HourlyProblem, series: HourlySeries) -> Row:
    empty = dict.fromkeys(("hour", "plan", "share", "energy_j", "value", "charge"))
    return {"policy": "none", **empty, "iterations": float(int(reachable(work, series))), "unit": series.unit}


def _work(fleet: Fleet, frontier: MethodFrontier) -> HourlyProblem:
    scale = scale_of(fleet)
    costs = [scale.cost(plan.time_s, plan.energy_j) for plan in frontier.plans]
    return HourlyProblem(
        times_s=tuple(time_s for time_s, _ in costs),
        energies_j=tuple(energy_j for _, energy_j in costs),
        idle_power_w=scale.idle_power_w * scale.gpus,
        iterations=fleet.emulation.iterations or 0,
    )


def _hour_columns(work: HourlyProblem, series: HourlySeries, slot: HourShare) -> Row:
    return {
        "hour": slot.hour,
        "plan": slot.plan,
        "share": slot.share,
        "iterations": iterations(work, slot),
        "energy_j": energy_j(work, slot),
        "unit": series.unit,
        "value": series.values[slot.hour],
        "charge": charge_of(work, series, slot),
    }


CAPPED_COLUMNS = ("time_s", "waiting_s", "energy_j", "power_w", "points")
"""Columns of `POWER_CAPS` that are empty where no plan keeps the cap."""


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
        return {"cap_w": cap_w, **dict.fromkeys(CAPPED_COLUMNS)}
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


def straggler_columns(
    slowdown: float,
    fastest: PlannedIteration,
    problem: Problem,
    scale: Scale,
    joined: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Return the columns of `STRAGGLERS` for one slowdown.

    Pipelines that finish before the slow one wait at their last clock until it is done too. That energy is spent in any
    case, so that the others take the plan of least effective energy within its time, which is slower than the plan of
    least total energy where the time allows. The slow pipeline does the work of the fastest plan at that plan's energy,
    and draws blocking power for the time that it loses.

    Args:
        slowdown: time of the slow pipeline over that of the fastest plan, 1 or more.
        fastest: plan of all pipelines where none is slow.
        problem: what one pipeline plans.
        scale: of the fleet.
        joined: numbers of the instructions that all pipelines have together (`joining`), which wait for the slow one.
    """
    time_s, others = slowdown * fastest.time_s, scale.pipelines - 1
    waited_j = fastest.energy_j + problem.waits_after_w(fastest.points) * (time_s - fastest.time_s)
    unpaid = dataclasses.replace(problem, waiting_power_w=0.0)
    effective = plan_beside_slow_pipeline(unpaid, joined, fastest, slowdown)
    adapted_j = total_energy_j(effective.energy_j, time_s, problem.waiting_power_w)
    if not joined:  # else the end of the slow pipeline is in the plan
        least_w = problem.waits_after_w(effective.points) - problem.waiting_power_w
        adapted_j += least_w * (time_s - effective.time_s)
    bound_j = total_energy_j(effective.lower_bound_j, time_s, problem.waiting_power_w)
    if adapted_j > waited_j:  # both are of real points, and rounding may find a worse one than the fastest plan
        effective, adapted_j = fastest, waited_j
    fleet_time_s, waiting_j = scale.cost(time_s, waited_j)
    energy_j, least_j = (
        waited_j + others * each_j + scale.pipelines * scale.reduction_energy_j
        for each_j in (adapted_j, sound_bound_j(bound_j, adapted_j))
    )
    return {
        "slowdown": slowdown,
        "time_s": fleet_time_s,
        "plan_time_s": effective.time_s,
        "waiting_energy_j": waiting_j,
        "energy_j": energy_j,
        "saving_percent": 100 * (1 - energy_j / waiting_j),
        "gap": energy_j / least_j - 1,
        "points": effective.points,
    }
