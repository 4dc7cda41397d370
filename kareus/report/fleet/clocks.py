"""Clocks of every stage of a fleet's pipeline in each plan: mean clocks, and how long the stage is busy.

A fleet's pipeline runs up to thousands of instructions, too many for a timeline; means show where a plan slows down.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from kareus.artifacts.tables import Row
from kareus.frontiers.tables import MICROBATCH
from kareus.graph.records import UPDATING, Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.methods import point_method

StageClocks = list[float | None]
"""Of a stage: mean clock of forwards in MHz, mean clock of backwards, seconds busy; with the update, its seconds."""


def fleet_clocks(
    fleet: pl.DataFrame, microbatch: pl.DataFrame, schedule: PipelineSchedule, chunks: int
) -> Iterator[list[StageClocks]]:
    """Yield the stages of each plan.

    Args:
        fleet: a table `FLEET`.
        microbatch: the table `MICROBATCH` that its plans choose from.
        schedule: order of the instructions.
        chunks: parts of every stage's layers.
    """
    points = {MICROBATCH.key_of(row): row for row in microbatch.iter_rows(named=True)}
    stages = 1 + max(microbatch["stage"])
    present = {(row["stage"], row["direction"]) for row in points.values()}
    updates = [[direction for direction in UPDATING if (stage, direction) in present] for stage in range(stages)]
    for row in fleet.iter_rows(named=True):
        method = point_method(row["method"])
        instructions = pipeline_instructions(schedule, stages, row["num_microbatches"], chunks=chunks, updates=updates)
        of_stage: list[list[Row]] = [[] for _ in range(stages)]
        for instruction, number in zip(instructions, row["points"], strict=True):
            key = instruction.key
            point = points[method, key.stage, key.chunk, str(key.direction), number]
            of_stage[key.stage].append(point)
        yield [_clocks(chosen) for chosen in of_stage]


def _clocks(chosen: list[Row]) -> StageClocks:
    forwards = [row for row in chosen if row["direction"] == Direction.FORWARD]
    backwards = [row for row in chosen if row["direction"] not in (Direction.FORWARD, *UPDATING)]
    updates = [row for row in chosen if row["direction"] in UPDATING]
    return [_mean_mhz(forwards), _mean_mhz(backwards), _seconds(chosen), *([_seconds(updates)] if updates else [])]


def _seconds(chosen: list[Row]) -> float:
    return float(round(sum(row["time_s"] for row in chosen), 4))


def _mean_mhz(chosen: list[Row]) -> float | None:
    """Return the mean clock, weighted by time."""
    if not chosen:
        return None
    return round(float(np.average([r["frequency_mhz"] for r in chosen], weights=[r["time_s"] for r in chosen])))
