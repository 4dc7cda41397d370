"""Planning for exactly what a selector asks for, between the precomputed plans.

Imported only where a selector needs it, since it needs the solver.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from kareus.errors import ArtifactError
from kareus.pareto import ROUNDING
from kareus.pipeline.clock_changes import clocked_points
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.fewer_changes import fewer_changes
from kareus.pipeline.frontiers import method_problem, plan_columns
from kareus.pipeline.methods import method_named
from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within, fastest_within, plans_from, sound_bound_j
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.starts import Starts
from kareus.plans.selectors import Goal, Prices, Selector, absolute_limit, select
from kareus.plans.units import JOULES_PER_KWH, SECONDS_PER_HOUR

HEADROOM = 1e-5
"""Share of an allowance that `fastest_under` may leave unused."""
MOST_DEADLINES = 16
"""Deadlines that the search for the least product tries; with neighbouring plans 1 % apart, far below their gaps."""
DEAREST_J_PER_S = 1e12
"""Joules that a second of GPU time may be worth. Beyond, no plan is worth waiting for, and HiGHS cannot tell."""
MOST_STEPS = 20
"""Of `fastest_under`, which usually takes three or four."""
AROUND = (0.998, 1.008)
"""Times, as shares of that of a plan with free changes of clock, between which plans that pay for them are made."""

IterationRow = dict[str, Any]
"""Of `ITERATION`."""
PlanCost = tuple[float, float]
"""Seconds and joules of a plan."""


def exact_row(
    selector: Selector, plans: pl.DataFrame, row: IterationRow, microbatch: pl.DataFrame, config: PipelineSlice
) -> IterationRow:
    """Plan for exactly what a selector asks for.

    Args:
        selector: any but `fastest` and `min-energy`, which are precomputed.
        plans: rows of `ITERATION` of one method.
        row: the best of them for the selector.
        microbatch: the table `MICROBATCH`.
        config: the pipeline.

    Returns:
        A row like `row`: a better plan where there is one, else the same plan.

    Raises:
        ArtifactError: the tables do not belong together.
    """
    problem = method_problem(config, microbatch, method_named(row["method"]))
    _check_fastest(problem, row)
    free = _planned_row(selector, plans, row, problem, config)
    if method_named(row["method"]).has_frontier and not config.gpu.clock_change.is_free:
        return _with_few_changes(selector, plans, row, free, problem, config, microbatch)
    return free


def _with_few_changes(
    selector: Selector,
    plans: pl.DataFrame,
    row: IterationRow,
    free: IterationRow,
    problem: Problem,
    config: PipelineSlice,
    microbatch: pl.DataFrame,
) -> IterationRow:
    """Return the best for the selector of `row` and of plans about as long as `free`, which takes changes as free."""
    starts = Starts(problem)
    deadline_s = absolute_limit(selector, plans) if selector.goal in (Goal.DEADLINE, Goal.STRAGGLER) else None
    around_s = free["time_s"] * np.linspace(*AROUND, MOST_STEPS) if deadline_s is None else np.array([deadline_s])
    deadlines_s = np.unique(np.clip(around_s, *starts.range_s()))
    planned = plans_from(starts, deadlines_s.tolist())
    fewer = fewer_changes(starts, clocked_points(config, microbatch, row["method"]), planned, deadlines_s.tolist())
    rows = [row, *({**row, **plan_columns(config, plan)} for plan in fewer)]
    absolute = selector if deadline_s is None else Selector(Goal.DEADLINE, deadline_s)
    costs = pl.DataFrame([{name: cost[name] for name in ("time_s", "energy_j")} for cost in rows])
    best = rows[select(absolute, costs, config.parallelism.gpus)]
    if deadline_s is None:
        return best
    bound_j = sound_bound_j(min(free["lower_bound_j"], best["energy_j"]), best["energy_j"])
    return {**best, "lower_bound_j": bound_j, "gap": best["energy_j"] / bound_j - 1}


def _planned_row(
    selector: Selector, plans: pl.DataFrame, row: IterationRow, problem: Problem, config: PipelineSlice
) -> IterationRow:
    """Plan as `exact_row` does, with changes of clock taken as free."""
    limit = absolute_limit(selector, plans)
    match selector.goal:
        case Goal.DEADLINE | Goal.STRAGGLER if limit is not None:
            return _within_deadline(limit, row, problem, config)
        case Goal.ENERGY if limit is not None:
            return _within_energy(limit, plans, row, problem, config)
        case Goal.POWER if limit is not None:
            return _within_power(limit, plans, row, problem, config)
        case Goal.COST if selector.prices is not None:
            return _least_cost(selector.prices, row, problem, config)
        case Goal.EDP:
            return _least_product(plans, row, problem, config)
        case _:
            return row


def fastest_under(
    problem: Problem, allowance: tuple[float, float], thirsty: PlanCost, frugal: PlanCost
) -> PlannedIteration | None:
    """The fastest plan found that uses at most an energy which grows with its time; None where there is none.

    Along a frontier energy falls with time, and the allowance does not, so that the two cross once. The crossing is
    found by regula falsi with the Illinois rule, on plans for exact deadlines.

    Args:
        problem: what to plan.
        allowance: joules, and joules more for each second of iteration time: (0, watts) is a limit on mean power.
        thirsty: a plan that uses more than it may.
        frugal: a slower plan that does not.
    """

    def excess_j(cost: PlanCost) -> float:
        return cost[1] - (allowance[0] + allowance[1] * cost[0])

    starts, best, (low_s, high_s) = Starts(problem), None, (thirsty[0], frugal[0])
    above_j, below_j = excess_j(thirsty), excess_j(frugal)
    for _ in range(MOST_STEPS):
        if high_s - low_s <= HEADROOM * high_s:
            break
        deadline_s = low_s + (high_s - low_s) * above_j / (above_j - below_j)
        (planned,) = plans_from(starts, [deadline_s])
        excess = excess_j((planned.time_s, planned.energy_j))
        if excess <= 0:
            if planned.time_s >= high_s:
                break
            best, high_s, below_j, above_j = planned, planned.time_s, excess, above_j / 2
            if -excess <= HEADROOM * planned.energy_j:
                break
        else:
            low_s, above_j, below_j = deadline_s, excess, below_j / 2
    return best


def _within_deadline(deadline_s: float, row: IterationRow, problem: Problem, config: PipelineSlice) -> IterationRow:
    """The cheaper of `row` and the plan for this deadline; the gap of either is that at the deadline."""
    planned = cheapest_within(problem, deadline_s)
    better = planned.time_s <= deadline_s and planned.energy_j < row["energy_j"]
    chosen = {**row, **plan_columns(config, planned)} if better else row
    bound_j = sound_bound_j(planned.lower_bound_j, chosen["energy_j"])
    return {**chosen, "lower_bound_j": bound_j, "gap": chosen["energy_j"] / bound_j - 1}


def _within_energy(
    energy_j: float, plans: pl.DataFrame, row: IterationRow, problem: Problem, config: PipelineSlice
) -> IterationRow:
    """A plan faster than `row`, slower than the next plan, which needs more energy; `row` where none is found."""
    faster_s = plans.filter(pl.col("time_s") < row["time_s"])["time_s"].to_list()
    if not faster_s:
        return row
    planned = fastest_within(problem, energy_j, (max(faster_s), row["time_s"]))
    return row if planned is None else {**row, **plan_columns(config, planned)}


def _within_power(
    power_w: float, plans: pl.DataFrame, row: IterationRow, problem: Problem, config: PipelineSlice
) -> IterationRow:
    """A plan faster than `row`, slower than the next plan, which draws more; `row` where none is found."""
    faster = plans.filter(pl.col("time_s") < row["time_s"]).sort("time_s").select("time_s", "energy_j")
    if faster.is_empty():
        return row
    planned = fastest_under(problem, (0.0, power_w), faster.row(-1), (row["time_s"], row["energy_j"]))
    return row if planned is None else {**row, **plan_columns(config, planned)}


def _least_cost(prices: Prices, row: IterationRow, problem: Problem, config: PipelineSlice) -> IterationRow:
    gpus = config.parallelism.gpus
    planned = least_cost(problem, prices, gpus)
    better = prices.cost(planned.time_s, planned.energy_j, gpus) < prices.cost(row["time_s"], row["energy_j"], gpus)
    return {**row, **plan_columns(config, planned)} if better else row


def _least_product(plans: pl.DataFrame, row: IterationRow, problem: Problem, config: PipelineSlice) -> IterationRow:
    times_s = sorted(plans["time_s"].to_list())
    at = times_s.index(row["time_s"])
    planned = least_product(problem, (times_s[max(at - 1, 0)], times_s[min(at + 1, len(times_s) - 1)]))
    better = planned is not None and planned.time_s * planned.energy_j < row["time_s"] * row["energy_j"]
    return {**row, **plan_columns(config, planned)} if planned is not None and better else row


def _check_fastest(problem: Problem, row: Mapping[str, Any]) -> None:
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    if fastest_s > row["time_s"] * (1 + ROUNDING):
        raise ArtifactError(
            f"the iteration frontier has a plan of {row['time_s']:.6g} s, but the microbatch frontiers allow none "
            f"below {fastest_s:.6g} s; rerun the stage 'pipeline'."
        )


def least_cost(problem: Problem, prices: Prices, gpus: int) -> PlannedIteration:
    """The plan of the least cost of energy and GPU time.

    A cost is linear in both, so that paying for GPU time is the same as drawing more power while waiting: the linear
    program, so charged, says when the iteration should end, and the plan is made for that time.

    Args:
        problem: what to plan.
        prices: of energy and GPU time.
        gpus: GPUs that are paid for.
    """
    joules_per_s = gpus * prices.per_gpu_hour / SECONDS_PER_HOUR * JOULES_PER_KWH
    if joules_per_s > DEAREST_J_PER_S * prices.per_kwh:
        return cheapest_within(problem, problem.cost([0] * len(problem.point_sets))[0])
    joules_per_s /= prices.per_kwh
    priced = dataclasses.replace(problem, waiting_power_w=problem.waiting_power_w + joules_per_s)
    return cheapest_within(problem, cheapest_within(priced, math.inf).time_s)


def least_product(problem: Problem, between_s: tuple[float, float]) -> PlannedIteration | None:
    """The plan of the least energy-delay product that a bounded search finds; None where there is no room to search.

    Args:
        problem: what to plan.
        between_s: deadlines to search between: the neighbours of the best plan that is known.
    """
    from scipy.optimize import minimize_scalar  # noqa: PLC0415 - takes 0.3 s, and no other selector needs it

    tried: list[PlannedIteration] = []

    def product_js(deadline_s: float) -> float:
        tried.append(cheapest_within(problem, deadline_s))
        return tried[-1].time_s * tried[-1].energy_j

    if between_s[0] < between_s[1]:
        minimize_scalar(product_js, bounds=between_s, method="bounded", options={"maxiter": MOST_DEADLINES})
    return min(tried, key=lambda plan: plan.time_s * plan.energy_j, default=None)
