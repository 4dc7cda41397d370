"""Rows of a fleet's tables: every method's frontier, and what stragglers, power caps and hours make of it."""

from collections.abc import Iterable, Sequence

from kareus.artifacts.tables import Row
from kareus.emulate.fleet import Scale, fleet_columns, identity, scale_of
from kareus.emulate.frontiers import MethodFrontier
from kareus.emulate.hours import HourlyProblem, HourShare, charge_of, energy_j, hourly, iterations, reachable, steady
from kareus.emulate.power_caps import power_cap_columns
from kareus.emulate.resolve import Fleet
from kareus.emulate.stragglers import straggler_columns
from kareus.errors import ConfigError
from kareus.plans.series import HourlySeries


def fleet_rows(fleet: Fleet, frontiers: Iterable[MethodFrontier]) -> list[Row]:
    """Rows of `FLEET`."""
    scale = scale_of(fleet)
    return [
        {**identity(fleet, own.method), "plan": number, **fleet_columns(scale, plan)}
        for own in frontiers
        for number, plan in enumerate(own.plans)
    ]


def straggler_rows(fleet: Fleet, frontiers: Iterable[MethodFrontier]) -> list[Row]:
    """Rows of `STRAGGLERS`."""
    scale = scale_of(fleet)
    return [
        {**identity(fleet, own.method), **straggler_columns(slowdown, own.plans[0], own.problem, scale, own.joined)}
        for own in frontiers
        for slowdown in fleet.emulation.stragglers
    ]


def power_cap_rows(fleet: Fleet, frontiers: Sequence[MethodFrontier]) -> list[Row]:
    """Rows of `POWER_CAPS`.

    Raises:
        ConfigError: no plan of any method draws so little.
    """
    scale, rows = scale_of(fleet), []
    for cap_w in fleet.emulation.power_caps_w:
        of_cap = [
            {**identity(fleet, own.method), **power_cap_columns(cap_w, own.plans, own.problem, scale)}
            for own in frontiers
        ]
        if all(row["time_s"] is None for row in of_cap):
            raise ConfigError(f"emulation.power_caps_w: {cap_w:g}: {_powers_text(scale, frontiers)}.")
        rows += of_cap
    return rows


def hour_rows(fleet: Fleet, frontiers: Sequence[MethodFrontier], series: HourlySeries) -> list[Row]:
    """Rows of `HOURS`, of the methods that are fast enough.

    Raises:
        ConfigError: none is.
    """
    works = {own.method: _work(fleet, own) for own in frontiers}
    most = max(reachable(work, series) for work in works.values())
    rows: list[Row] = []
    for method, work in works.items():
        if work.iterations > reachable(work, series):
            continue
        for policy, slots in (("hourly", hourly(work, series)), ("steady", steady(work, series))):
            own = {**identity(fleet, method), "policy": policy}
            rows += [{**own, **_hour_columns(work, series, slot)} for slot in slots]
    if not rows:
        raise ConfigError(
            f"emulation.iterations={fleet.emulation.iterations}: {fleet.name} can do 1 to {int(most)} in the "
            f"{len(series.values)} hours of the series."
        )
    return rows


def _work(fleet: Fleet, own: MethodFrontier) -> HourlyProblem:
    scale = scale_of(fleet)
    costs = [scale.cost(plan.time_s, plan.energy_j) for plan in own.plans]
    return HourlyProblem(
        times_s=tuple(time_s for time_s, _ in costs),
        energies_j=tuple(energy_j for _, energy_j in costs),
        idle_power_w=scale.static_power_w * scale.gpus,
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


def _powers_text(scale: Scale, frontiers: Sequence[MethodFrontier]) -> str:
    powers_w = [fleet_columns(scale, plan)["power_w"] / scale.gpus for own in frontiers for plan in own.plans]
    return f"no plan draws so little; the frontiers reach from {min(powers_w):.1f} to {max(powers_w):.1f} W of each GPU"
