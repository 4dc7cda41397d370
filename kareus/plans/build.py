"""Choosing a point of the iteration frontier, and assembling its plan; the plans of all points."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import polars as pl

import kareus
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.records import content_hash, suggest
from kareus.errors import ArtifactError, ConfigError
from kareus.graph.instruction import InstructionKey
from kareus.pipeline.clock_changes import PricedChange, priced_changes
from kareus.pipeline.instructions import Instruction, instructions_of
from kareus.pipeline.methods import point_method
from kareus.pipeline.solver.dag import earliest_starts, iteration_dag
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan, PlannedInstruction, PredictedCost, StagePlan
from kareus.plans.frontiers import Frontiers, read_frontiers
from kareus.plans.selectors import OVER_TIME, Goal, parse_selector, select, spelled
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice, cut


def select_plan(workload: Workload, frontiers: Frontiers, selector: str, method: str, *, name: str) -> Plan:
    """Return the plan that a selector asks for: precomputed, or solved for where it may lie between those.

    Args:
        workload: what is planned.
        frontiers: those of the workload.
        selector: the request, such as `fastest` or `deadline=4.6s`.
        method: the method whose frontier to select from.
        name: readable name of the workload.

    Raises:
        ConfigError: the selector is not understood, no plan keeps its limit, or the method was not planned.
        ArtifactError: the frontiers do not belong together.
    """
    selector = spelled(selector)
    parsed, plans = parse_selector(selector), frontiers.plans(method)
    if plans.is_empty():
        raise ConfigError(f"method {method}: not planned; {suggest(method, frontiers.methods)}.")
    if parsed.goal in OVER_TIME:
        from kareus.plans.grid_selection import fastest_kept  # noqa: PLC0415 - only these selectors need it

        return fastest_kept(
            parsed, plans, lambda row: plan_of_row(workload, name, selector, row, frontiers), workload.gpu
        )
    row = plans.row(select(parsed, plans, workload.parallelism.gpus), named=True)
    if parsed.goal not in (Goal.FASTEST, Goal.MIN_ENERGY):
        from kareus.plans.limits import exact_row  # noqa: PLC0415 - the solver, which only these need

        row = exact_row(parsed, plans, row, frontiers.microbatch, cut(workload, "pipeline"))
    return plan_of_row(workload, name, selector, row, frontiers)


def plan_of_row(workload: Workload, name: str, selector: str, row: dict[str, Any], frontiers: Frontiers) -> Plan:
    """Return the plan of a row of `ITERATION`."""
    instructions = instructions_of(cut(workload, "pipeline"))
    chosen = _chosen(frontiers.microbatch, point_method(row["method"]), instructions, row["points"])
    (changes,) = priced_changes(cut(workload, "pipeline"), frontiers.microbatch, row["method"], [row["points"]])
    return Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        kareus_version=kareus.__version__,
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        workload=name,
        workload_hash=content_hash(workload),
        method=row["method"],
        selector=selector,
        testbed=frontiers.testbed,
        gpus=workload.parallelism.gpus,
        prediction=PredictedCost(**{field.name: row[field.name] for field in dataclasses.fields(PredictedCost)}),
        stages=_stages(workload, instructions, chosen, changes),
        fsdp=workload.parallelism.fsdp,
    )


def _chosen(
    microbatch: pl.DataFrame, method: str, instructions: Sequence[Instruction], numbers: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the row of the microbatch frontiers that each instruction runs at."""
    rows = microbatch.filter(pl.col("method") == method).iter_rows(named=True)
    points = {(r["stage"], r["chunk"], r["direction"], r["point"]): r for r in rows}
    kinds = [i.key.kind for i in instructions]
    keys = [(kind.stage, kind.chunk, str(kind.direction), n) for kind, n in zip(kinds, numbers, strict=True)]
    for key in keys:
        if key not in points:
            raise ArtifactError(
                f"the iteration frontier names point {key}, which is not in the microbatch frontier; "
                "run snakemake, which makes both anew."
            )
    return [points[key] for key in keys]


def _stages(
    workload: Workload,
    instructions: Sequence[Instruction],
    chosen: Sequence[dict[str, Any]],
    changes: Sequence[PricedChange],
) -> tuple[StagePlan, ...]:
    times_s = [point["time_s"] + change.time_s for point, change in zip(chosen, changes, strict=True)]
    starts_s = earliest_starts(iteration_dag(cut(workload, "pipeline")), times_s)
    planned: list[list[PlannedInstruction]] = [[] for _ in workload.parallelism.split]
    for instruction, point, change, start_s in zip(instructions, chosen, changes, starts_s, strict=True):
        planned[instruction.key.stage].append(_planned(instruction.key, point, change, start_s))
    return tuple(
        StagePlan(stage=stage, layers=layers, instructions=tuple(rows))
        for stage, (layers, rows) in enumerate(zip(workload.parallelism.split, planned, strict=True))
    )


def _planned(key: InstructionKey, point: dict[str, Any], change: PricedChange, start_s: float) -> PlannedInstruction:
    return PlannedInstruction(
        direction=key.direction,
        microbatch=key.microbatch,
        chunk=key.chunk,
        execution=Execution(point["execution"]),
        frequency_mhz=point["frequency_mhz"],
        partitions=tuple(Choice(**choice) for choice in point["choices"]),
        start_s=start_s,
        time_s=point["time_s"] + change.time_s,
        energy_j=point["energy_j"] + change.energy_j,
        change_s=change.time_s,
        change_j=change.energy_j,
    )


def frontier_plans(folder: WorkloadFolder, method: str) -> tuple[Plan, ...]:
    """Return the plans of a method's iteration frontier, by rising time; their selectors are deadlines at their times.

    Args:
        folder: of a workload that was planned.
        method: whose frontier.

    Raises:
        ConfigError: the method was not planned.
        ArtifactError: a table is missing, damaged or of another workload.
    """
    from kareus.workload.naming import plain_name  # noqa: PLC0415 - Hydra, which building a plan needs not

    workload = load_slice(folder.config("plan"), PlanSlice).workload
    frontiers = read_frontiers(folder, workload)
    if method not in frontiers.methods:
        raise ConfigError(f"{folder.path}: method {method}: not planned; {suggest(method, frontiers.methods)}.")
    rows = frontiers.plans(method).sort("time_s").to_dicts()
    name = plain_name(workload)
    return tuple(plan_of_row(workload, name, f"deadline={row['time_s']:.9g}s", row, frontiers) for row in rows)
