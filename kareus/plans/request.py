"""Checking that a plan is what its selector asks for, and that its numbers are those of the frontiers."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from kareus.errors import ArtifactError, ConfigError
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pipeline.clock_changes import ALIKE, priced_changes
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.methods import point_method
from kareus.plans.check import TOLERANCE, check_prediction, is_near, place
from kareus.plans.document import Plan, PlannedInstruction, PredictedCost
from kareus.plans.frontiers import Frontiers
from kareus.plans.selectors import (
    LIMITED,
    MEASURES,
    OVER_TIME,
    Goal,
    Selector,
    absolute_limit,
    measures_of,
    parse_selector,
    select,
)

BOUND_TOLERANCE = 1e-3 + ALIKE
"""Share by which a lower bound may lie outside those of neighbouring plans, each of which is certified by itself: some
with points off the frontiers of instructions, which the bound allows for."""

Settings = tuple[str, int, tuple[tuple[str, int, str], ...]]
"""How an instruction runs: execution, clock and choices."""
Cost = tuple[float, float]
"""Seconds and joules of one GPU."""


def check_limit(plan: Plan, path: Path) -> Selector:
    """Check by the plan's own prediction that it keeps an absolute limit of its selector.

    Returns:
        The selector.

    Raises:
        ArtifactError: there is no such selector, or the plan does not keep its limit.
    """
    try:
        selector = parse_selector(plan.selector)
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error}") from error
    if selector.goal is not Goal.STRAGGLER:
        _check_limit(plan, selector.goal, selector.limit, path)
    return selector


def check_frontiers(plan: Plan, frontiers: Frontiers, config: PipelineSlice, path: Path) -> None:
    """Check that every instruction of `plan` is a point of the frontiers, and the whole what its selector asks for.

    Args:
        plan: one whose prediction follows from its instructions.
        frontiers: of its workload.
        config: the pipeline of its workload.
        path: where the plan was read, the start of every message.

    Raises:
        ArtifactError: it was planned from other measurements, or edited.
    """
    selector = check_limit(plan, path)
    if plan.testbed != frontiers.testbed:
        raise ArtifactError(
            f"{path}: planned from {plan.testbed.label} ({plan.testbed.detail}), the frontiers are from "
            f"{frontiers.testbed.label} ({frontiers.testbed.detail}); select the plan anew."
        )
    _check_points(plan, frontiers.microbatch, config, path)
    plans = frontiers.plans(plan.method)
    if plans.is_empty():
        raise ArtifactError(f"{path}: method: '{plan.method}' is not in the iteration frontier; select the plan anew.")
    _check_selected(plan, selector, plans, path)


def _check_limit(plan: Plan, goal: Goal, limit: float | None, path: Path) -> None:
    if limit is None or goal in OVER_TIME:  # `grid_selection.check_over_time`
        return
    limited, unit = LIMITED[goal]
    value = measures_of(plan.prediction.time_s, plan.prediction.energy_j)[limited]
    if value > limit * (1 + TOLERANCE):
        raise ArtifactError(
            f"{path}: selector: '{plan.selector}' allows {limit:.6g} {unit}, the plan has {value:.6g}; "
            "the file was edited, select the plan anew."
        )


def _check_points(plan: Plan, microbatch: pl.DataFrame, config: PipelineSlice, path: Path) -> None:
    """Check what every instruction takes against the points of its kind, and what changes of clock cost."""
    method = point_method(plan.method)
    costs: dict[InstructionKind, dict[Settings, list[tuple[int, Cost]]]] = defaultdict(dict)
    for row in microbatch.filter(pl.col("method") == method).iter_rows(named=True):
        of_kind = costs[InstructionKind(row["stage"], row["chunk"], Direction(row["direction"]))]
        of_kind.setdefault(_settings(row), []).append((row["point"], (row["time_s"], row["energy_j"])))
    points = [_point_of(i, costs[key.kind], f"{path}: {place(key)}", method) for key, i in plan.keyed]
    (changes,) = priced_changes(config, microbatch, plan.method, [points])
    for (key, i), change in zip(plan.keyed, changes, strict=True):
        if not is_near(i.change_s, change.time_s, TOLERANCE * i.time_s) or not is_near(
            i.change_j, change.energy_j, TOLERANCE * i.energy_j
        ):
            raise ArtifactError(
                f"{path}: {place(key)}: change_s={i.change_s:.6g} and change_j={i.change_j:.6g}, by the numbers of the "
                f"GPU {change.time_s:.6g} and {change.energy_j:.6g}; select the plan anew."
            )


def _point_of(
    instruction: PlannedInstruction, costs: Mapping[Settings, list[tuple[int, Cost]]], where: str, method: str
) -> int:
    """Return the point that an instruction runs at."""
    choices = [dataclasses.asdict(choice) for choice in instruction.partitions]
    settings = _settings(
        {"execution": instruction.execution, "frequency_mhz": instruction.frequency_mhz, "choices": choices}
    )
    if settings not in costs:
        raise ArtifactError(
            f"{where}: '{instruction.execution}' at {instruction.frequency_mhz} MHz with these choices is no point of "
            f"the microbatch frontier of '{method}'; select the plan anew."
        )
    planned = instruction.time_s - instruction.change_s, instruction.energy_j - instruction.change_j
    point = next((number for number, cost in costs[settings] if _same(planned, cost)), None)
    if point is None:
        takes, expected = ("{:.6g} s and {:.6g} J".format(*cost) for cost in (planned, costs[settings][0][1]))
        raise ArtifactError(f"{where}: takes {takes}, by the microbatch frontier {expected}; select the plan anew.")
    return point


def _settings(point: Mapping[str, Any]) -> Settings:
    choices = sorted((c["partition"], c["sm_count"], c["launch"]) for c in point["choices"])
    return str(point["execution"]), point["frequency_mhz"], tuple(choices)


def _same(planned: Cost, expected: Cost) -> bool:
    return all(is_near(value, other, TOLERANCE * other) for value, other in zip(planned, expected, strict=True))


def _check_selected(plan: Plan, selector: Selector, plans: pl.DataFrame, path: Path) -> None:
    """Check that no precomputed plan serves the selector better, and the lower bound by those of its neighbours."""
    if selector.goal in OVER_TIME:
        _check_bound(plan, plan.prediction.time_s, plans, path)
        return
    limit = absolute_limit(selector, plans)
    _check_limit(plan, selector.goal, limit, path)
    try:
        best = plans.row(select(selector, plans, plan.gpus), named=True)
    except ConfigError as error:
        raise ArtifactError(f"{path}: selector: {error}") from error
    measure = MEASURES[selector.goal]
    value, least = (
        measures_of(time_s, energy_j, selector.prices, plan.gpus)[measure]
        for time_s, energy_j in (
            (plan.prediction.time_s, plan.prediction.energy_j),
            (best["time_s"], best["energy_j"]),
        )
    )
    if value > least * (1 + TOLERANCE):
        raise ArtifactError(
            f"{path}: selector: '{plan.selector}' asks for the least {measure}, the plan has {value:.6g}, the "
            f"iteration frontier of '{plan.method}' {least:.6g}; select the plan anew."
        )
    if selector.goal in (Goal.FASTEST, Goal.MIN_ENERGY):  # precomputed, so that nothing may differ
        for field in dataclasses.fields(PredictedCost):
            expected = best[field.name]
            check_prediction(plan, path, field.name, expected, TOLERANCE * abs(expected or 0.0), "the frontier has")
        return
    is_by_deadline = selector.goal in (Goal.DEADLINE, Goal.STRAGGLER)
    _check_bound(plan, limit if is_by_deadline and limit else plan.prediction.time_s, plans, path)


def _check_bound(plan: Plan, certified_s: float, plans: pl.DataFrame, path: Path) -> None:
    """Check the bound on all plans within `certified_s`: more time never raises it."""
    rising = plans.sort("time_s")
    faster = rising.filter(pl.col("time_s") <= certified_s * (1 + TOLERANCE))["lower_bound_j"].to_list()
    slower = rising.filter(pl.col("time_s") >= certified_s * (1 - TOLERANCE))["lower_bound_j"].to_list()
    most_j = min(faster, default=plan.prediction.energy_j)
    least_j = max(slower, default=min(rising["lower_bound_j"].to_list()))
    bound_j = plan.prediction.lower_bound_j
    if not least_j * (1 - BOUND_TOLERANCE) <= bound_j <= most_j * (1 + BOUND_TOLERANCE):
        raise ArtifactError(
            f"{path}: prediction.lower_bound_j={bound_j:.6g}, by the iteration frontier between {least_j:.6g} and "
            f"{most_j:.6g}; select the plan anew."
        )
