"""Rows of a fleet's tables: every method's frontier, and what stragglers, power caps and hours make of it."""

from collections.abc import Iterable, Sequence

import numpy as np

from kareus.artifacts.tables import Row
from kareus.emulate.fleet import fleet_columns, identity, scale_of
from kareus.emulate.frontiers import MethodFrontier
from kareus.emulate.hours import HourlyProblem, HourShare, charge_of, energy_j, hourly, iterations, reachable, steady
from kareus.emulate.power_caps import crossing_plan, power_cap_columns
from kareus.emulate.resolve import Fleet
from kareus.emulate.stragglers import straggler_columns
from kareus.emulate.waiting import adopted
from kareus.pareto import Mask, pareto_mask
from kareus.pipeline.methods import method_named
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
