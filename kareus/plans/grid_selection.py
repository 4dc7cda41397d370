"""Plans whose power over an iteration keeps a limit of the grid: choosing one, checking it, and what it costs.

Slower clocks draw less, and less of an iteration is then waiting at low power, so that slower plans of a frontier ramp
and swing less. The price of that is time. What idle burn and staggered replicas would cost instead is worked out from
the same instructions.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from kareus.errors import ArtifactError, ConfigError
from kareus.gpu_model.gpu import Gpu
from kareus.pareto import as_fast_s
from kareus.plans.build import plan_of_row
from kareus.plans.document import Plan
from kareus.plans.frontiers import Frontiers
from kareus.plans.grid_power import GridPower, grid_power, power_line, power_series
from kareus.plans.idle_burn import LIMIT_ROUNDING, excess, least_burn
from kareus.plans.selectors import OVER_TIME, Goal, Selector, fastest_plan, parse_selector
from kareus.plans.staggered import can_be_staggered, least_stagger
from kareus.plans.units import less, rounded, scaled
from kareus.workload.config import Workload

DIGITS = 4
"""Significant digits of limits in messages."""
RowPlanner = Callable[[dict[str, Any]], Plan]
"""Makes the plan of a row of `ITERATION`."""


def fastest_kept(selector: Selector, plans: pl.DataFrame, planned: RowPlanner, gpu: Gpu) -> Plan:
    """Return the fastest plan of a frontier whose power keeps the limit of a selector.

    Of those that measuring cannot tell from it in time (`AS_FAST`), that is the one of the least energy.

    Args:
        selector: `ramp`, `floor` or `swing`.
        plans: rows of `ITERATION` of one method.
        planned: makes the plan of a row.
        gpu: that runs it.

    Raises:
        ConfigError: no plan keeps it; the message says what can be reached, and what idle burn would cost.
    """
    beyond: list[tuple[float, GridPower, Plan]] = []
    kept: list[Plan] = []
    for row in plans.sort("time_s").iter_rows(named=True):
        if kept and row["time_s"] > as_fast_s([kept[0].prediction.time_s]):
            break
        plan = planned(row)
        seen = grid_power(power_series(plan, gpu))
        excess_share = excess(selector, seen)
        if excess_share <= LIMIT_ROUNDING:
            kept.append(plan)
        else:
            beyond.append((excess_share, seen, plan))
    if kept:
        return min(kept, key=lambda plan: plan.prediction.energy_j)
    _, seen, plan = min(beyond, key=lambda tried: tried[0])
    burn = _burn_words(planned(fastest_plan(plans)), gpu, selector)
    raise ConfigError(
        f"{selector.goal}: no plan of {plan.method} keeps {_limit_words(selector)}; the nearest that can be reached is "
        f"{_reached_words(selector.goal, seen)}, by the plan of {scaled(plan.prediction.time_s, 's', digits=4)}. "
        f"{burn[0].upper()}{burn[1:]}."
    )


def check_over_time(
    plan: Plan, selector: Selector, plans: pl.DataFrame, planned: RowPlanner, gpu: Gpu, path: Path
) -> None:
    """Check that a plan keeps a limit on power over time, and that no faster plan does.

    Args:
        plan: read from `path`.
        selector: `ramp`, `floor` or `swing`.
        plans: rows of `ITERATION` of its method.
        planned: makes the plan of a row.
        gpu: that runs it.
        path: of the plan, the start of every message.

    Raises:
        ArtifactError: it does not, or one does.
    """
    seen = grid_power(power_series(plan, gpu))
    if excess(selector, seen) > LIMIT_ROUNDING:
        raise ArtifactError(
            f"{path}: selector: '{plan.selector}' allows {_limit_words(selector)}, the plan has "
            f"{_reached_words(selector.goal, seen)}; the file was edited, select the plan anew."
        )
    try:
        best = fastest_kept(selector, plans, planned, gpu)
    except ConfigError as error:
        raise ArtifactError(f"{path}: selector: {error}") from error
    if plan.prediction.time_s > best.prediction.time_s * (1 + LIMIT_ROUNDING):
        raise ArtifactError(
            f"{path}: selector: '{plan.selector}' asks for the least time_s, the plan has "
            f"{plan.prediction.time_s:.6g}, the iteration frontier of '{plan.method}' {best.prediction.time_s:.6g}; "
            "select the plan anew."
        )


def grid_lines(plan: Plan, workload: Workload, frontiers: Frontiers) -> Iterator[str]:
    """Yield what the grid sees of a plan, and what a limit on that costs: by this plan, by idle burn, by staggering.

    Args:
        plan: what runs.
        workload: that is planned.
        frontiers: of the workload.
    """
    yield power_line(power_series(plan, workload.gpu))
    selector = parse_selector(plan.selector)
    if selector.goal in OVER_TIME:
        yield from _price_lines(plan, workload, frontiers, selector)


def _price_lines(plan: Plan, workload: Workload, frontiers: Frontiers, selector: Selector) -> Iterator[str]:
    """Yield what a limit costs against the plan `fastest`, and what other ways to keep it would."""
    row = fastest_plan(frontiers.plans(plan.method))
    fastest = plan_of_row(workload, plan.workload, Goal.FASTEST, row, frontiers)
    before = grid_power(power_series(fastest, workload.gpu))
    if excess(selector, before) <= LIMIT_ROUNDING:
        yield f"the plan `fastest` keeps it, too: {before.words}, at least {scaled(before.least_w, 'W')}"
        return
    yield (
        f"plan `fastest`, without the limit: {before.words}, at least {scaled(before.least_w, 'W')}; the limit costs "
        f"{_difference(plan.prediction.time_s, fastest.prediction.time_s, 'time')} and "
        f"{_difference(plan.prediction.energy_j, fastest.prediction.energy_j, 'energy')}"
    )
    yield _burn_words(fastest, workload.gpu, selector)
    if can_be_staggered(workload):
        yield _stagger_words(fastest, workload, selector)


def _burn_words(fastest: Plan, gpu: Gpu, selector: Selector) -> str:
    burn = least_burn(fastest, gpu, selector)
    if burn is None:
        return "idle burn cannot keep it in the time of `fastest`: too few GPUs wait"
    share = 100 * burn.energy_j / fastest.prediction.energy_j
    return (
        f"idle burn of GPUs that wait would keep it in the time of `fastest`: {scaled(burn.energy_j, 'J')} more an "
        f"iteration ({rounded(share)} %), {burn.seen.words}; Kareus does not burn"
    )


def _stagger_words(fastest: Plan, workload: Workload, selector: Selector) -> str:
    stagger = least_stagger(fastest, workload, selector)
    if stagger is None:
        return f"staggering the {workload.parallelism.dp} replicas of `fastest` does not keep it"
    longer = _difference(stagger.series.period_s, fastest.prediction.time_s, "time")
    more = _difference(stagger.series.energy_j, fastest.prediction.energy_j, "energy")
    return (
        f"staggering the {workload.parallelism.dp} replicas of `fastest` over {scaled(stagger.shift_s, 's')} would "
        f"keep it: {longer} and {more}, {stagger.seen.words}; Kareus does not stagger"
    )


def _difference(value: float, before: float, of: str) -> str:
    return less(100 * (1 - value / before), of)


def _limit_words(selector: Selector) -> str:
    assert selector.limit is not None
    match selector.goal:
        case Goal.RAMP:
            return scaled(selector.limit, "W/s", digits=DIGITS)
        case Goal.FLOOR:
            return scaled(selector.limit, "W", digits=DIGITS)
        case _:
            return f"{100 * selector.limit:.4g} %"


def _reached_words(goal: Goal, seen: GridPower) -> str:
    """Return what the grid sees of what a goal limits, rounded to a limit that can be given."""
    match goal:
        case Goal.RAMP:
            return scaled(_rounded(seen.ramp_w_per_s, math.ceil), "W/s", digits=DIGITS)
        case Goal.FLOOR:
            return scaled(_rounded(seen.least_w, math.floor), "W", digits=DIGITS)
        case _:
            return f"{_rounded(100 * seen.swing, math.ceil):.4g} %"


def _rounded(value: float, to_whole: Callable[[float], int]) -> float:
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - DIGITS) if value else 1.0
    return to_whole(value / step) * step
