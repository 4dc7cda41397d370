"""Turning a row of the iteration frontier into a plan document."""

import datetime
from typing import Any

import polars as pl

import kareus
from kareus.artifacts.provenance import TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.errors import ArtifactError
from kareus.pipeline.dag import Dag, build_dag, earliest_starts
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.methods import point_method
from kareus.pipeline.transfers import transfers_s
from kareus.plan.document import PLAN_SCHEMA_VERSION, Plan, PlannedInstruction, Prediction, StagePlan
from kareus.schedule.choice import Choice
from kareus.workload.config import Workload
from kareus.workload.slices import cut


def build_plan(
    workload: Workload,
    name: str,
    selector: str,
    row: dict[str, Any],
    instructions: pl.DataFrame,
    microbatch: pl.DataFrame,
    testbed: TestbedIdentity,
) -> Plan:
    """Assemble the plan of one row of the iteration frontier.

    Args:
        workload: what is planned.
        name: its readable name.
        selector: the request that picked the row.
        row: a row of `ITERATION`.
        instructions: the table `INSTRUCTIONS` of the pipeline.
        microbatch: the table `MICROBATCH`.
        testbed: where the measurements were taken.
    """
    points = _points(microbatch, point_method(row["method"]))
    chosen = [
        _chosen(points, (i["stage"], i["direction"], number))
        for i, number in zip(instructions.iter_rows(named=True), row["points"], strict=True)
    ]
    starts_s = earliest_starts(_dag(workload), [point["time_s"] for point in chosen])
    planned: list[list[PlannedInstruction]] = [[] for _ in range(workload.parallelism.pp)]
    for instruction, point, start_s in zip(instructions.iter_rows(named=True), chosen, starts_s, strict=True):
        planned[instruction["stage"]].append(_planned(instruction, point, start_s))
    layers = workload.parallelism.layers_per_stage
    assert layers is not None  # resolving fills it
    return Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        kareus_version=kareus.__version__,
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        workload=name,
        workload_hash=content_hash(workload),
        method=row["method"],
        selector=selector,
        testbed=testbed,
        gpus=workload.parallelism.gpus,
        prediction=Prediction(
            time_s=row["time_s"],
            energy_j=row["energy_j"],
            static_energy_j=row["static_energy_j"],
            dynamic_energy_j=row["dynamic_energy_j"],
            lower_bound_j=row["lower_bound_j"],
        ),
        stages=tuple(
            StagePlan(stage=stage, layers=layers[stage], instructions=tuple(own)) for stage, own in enumerate(planned)
        ),
    )


Key = tuple[int, str, int]
"""Stage, direction and number of a point of a microbatch frontier."""


def _points(microbatch: pl.DataFrame, method: str) -> dict[Key, dict[str, Any]]:
    rows = microbatch.filter(pl.col("method") == method).iter_rows(named=True)
    return {(r["stage"], r["direction"], r["point"]): r for r in rows}


def _chosen(points: dict[Key, dict[str, Any]], key: Key) -> dict[str, Any]:
    if key not in points:
        raise ArtifactError(
            f"the iteration frontier names point {key}, which the microbatch frontier lacks; rerun both."
        )
    return points[key]


def _dag(workload: Workload) -> Dag:
    instructions = pipeline_instructions(workload.pipeline.schedule, workload.parallelism.pp, workload.num_microbatches)
    return build_dag(instructions, transfers_s(cut(workload, "pipeline")))


def _planned(instruction: dict[str, Any], point: dict[str, Any], start_s: float) -> PlannedInstruction:
    return PlannedInstruction(
        direction=instruction["direction"],
        microbatch=instruction["microbatch"],
        execution=point["execution"],
        frequency_mhz=point["frequency_mhz"],
        partitions=tuple(Choice(**choice) for choice in point["choices"]),
        start_s=start_s,
        time_s=point["time_s"],
        energy_j=point["energy_j"],
    )
