"""The data block of the page: what its figures draw, as plain data taken from the tables.

Frames go over column by column, which keeps the page small; `data.js` turns them back into rows.
"""

from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.partition.graph import Direction
from kareus.pipeline.compare import COSTS, compare_methods, with_reductions
from kareus.plan.document import Plan
from kareus.report.effort import search_efforts
from kareus.report.inputs import ReportInputs
from kareus.report.summary import plan_rows

PLAN_COLUMNS = (*COSTS, "gap", "time_reduction_percent", "energy_reduction_percent")
POINT_COLUMNS = ("execution", "frequency_mhz", "time_s", "energy_j", "effective_energy_j")


def page_data(inputs: ReportInputs) -> dict[str, Any]:
    """Everything that the page shows, in the units that its keys end in; gaps are fractions."""
    return {
        "workload": inputs.workload,
        "gpus": inputs.gpus,
        "testbed": {"kind": inputs.testbed.kind, "label": inputs.testbed.label, "detail": inputs.testbed.detail},
        "provenance": to_plain(inputs.provenance),
        "sources": [{"name": source.name, **to_plain(source.provenance)} for source in inputs.sources],
        "methods": to_plain(compare_methods(inputs.iteration)),
        "iteration": _iteration(inputs.iteration),
        "plans": [
            {**to_plain(row), **_timeline(plan)}
            for row, plan in zip(plan_rows(inputs.iteration, inputs.plans), inputs.plans, strict=True)
        ],
        "runs": to_plain(inputs.runs),
        "search": [
            {
                "partition": search.partition,
                "candidates": _columns(search.candidates),
                "rounds": _columns(search.rounds),
            }
            for search in inputs.searches
        ],
        "efforts": to_plain(search_efforts(inputs.searches)),
        "microbatch": _microbatch(inputs.microbatch),
        "blocking_power_w": _blocking_power_w(inputs.microbatch),
    }


def _columns(frame: pl.DataFrame) -> dict[str, list[Any]]:
    return frame.to_dict(as_series=False)


def _iteration(iteration: pl.DataFrame) -> list[dict[str, Any]]:
    plans = (
        with_reductions(iteration, iteration).sort("time_s").partition_by("method", maintain_order=True, as_dict=True)
    )
    methods = iteration["method"].unique(maintain_order=True)
    return [{"method": method, "plans": _columns(plans[method,].select(PLAN_COLUMNS))} for method in methods]


def _timeline(plan: Plan) -> dict[str, Any]:
    """Stages of a plan; instructions name one of its few different schedules by number."""
    numbers: dict[str, int] = {}
    schedules: list[Any] = []
    stages = []
    for stage in plan.stages:
        instructions = []
        for instruction in stage.instructions:
            schedule = to_plain(instruction)
            placed = {key: schedule.pop(key) for key in ("direction", "microbatch", "chunk", "start_s")}
            if (text := repr(schedule)) not in numbers:
                numbers[text] = len(schedules)
                schedules.append(schedule)
            instructions.append({**placed, "schedule": numbers[text]})
        stages.append({"stage": stage.stage, "instructions": instructions})
    chunks = 1 + max(i.chunk for stage in plan.stages for i in stage.instructions)
    return {"schedules": schedules, "stages": stages, "chunks": chunks}


def _microbatch(microbatch: pl.DataFrame) -> list[dict[str, Any]]:
    """Frontiers by direction and stage; stages, or chunks of them, whose frontiers are equal share one entry."""
    groups: list[dict[str, Any]] = []
    passed = pl.Enum([str(direction) for direction in Direction])  # which sorts as a microbatch passes them
    frontier = microbatch.filter("on_frontier").with_columns(pl.col("direction").cast(passed))
    order, is_chunked = ("direction", "stage", "chunk"), microbatch["chunk"].max() != 0
    for (_, stage, chunk), rows in frontier.sort(*order, "time_s", maintain_order=True).group_by(
        *order, maintain_order=True
    ):
        place = f"{stage} chunk {chunk}" if is_chunked else str(stage)
        methods = [
            {"method": method, "points": _columns(points.select(POINT_COLUMNS))}
            for (method,), points in rows.group_by("method", maintain_order=True)
        ]
        direction = rows["direction"][0]
        equal = next((g for g in groups if g["direction"] == direction and g["methods"] == methods), None)
        if equal is None:
            groups.append({"direction": direction, "stages": [place], "methods": methods})
        else:
            equal["stages"].append(place)
    return groups


def _blocking_power_w(microbatch: pl.DataFrame) -> float:
    """Power that the effective energies leave out: (E - E_effective) / t, the same in every row."""
    row = microbatch.row(0, named=True)
    return float((row["energy_j"] - row["effective_energy_j"]) / row["time_s"])
