"""The time of an iteration whose instructions take given times: those of a pipeline, in order, with its messages.

Predictions of workloads that are compared often have the same pipeline, so that what they share is kept.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from kareus.graph.records import UPDATING, Direction
from kareus.pipeline.config import PipelineSchedule
from kareus.pipeline.instructions import Instruction, pipeline_instructions
from kareus.pipeline.solver.dag import Dag, build_dag, makespan
from kareus.pipeline.transfers import transfers_s
from kareus.workload.config import Workload
from kareus.workload.slices import cut

KEPT = 1024
"""Pipelines that are kept."""


class PipelineShape(NamedTuple):
    """What decides the instructions of an iteration."""

    schedule: PipelineSchedule
    stages: int
    microbatches: int
    chunks: int
    updates: tuple[tuple[Direction, ...], ...]
    """Instructions of the update, by stage."""


def iteration_s(
    workload: Workload,
    passes_s: Mapping[tuple[int, int, Direction], float],
    updates_s: Sequence[Mapping[Direction, float]],
) -> float:
    """Return the time of an iteration.

    Args:
        workload: its pipeline, microbatches and messages.
        passes_s: time of a pass by stage, chunk and direction.
        updates_s: time of each instruction of the update, by stage.
    """
    shape = PipelineShape(
        workload.pipeline.schedule,
        workload.parallelism.pp,
        workload.num_microbatches,
        workload.chunks,
        tuple(tuple(stage) for stage in updates_s),
    )
    times_s = [
        updates_s[i.key.stage][i.key.direction] if i.key.direction in UPDATING else passes_s[i.key.kind]
        for i in _instructions(shape)
    ]
    return makespan(_dag(shape, transfers_s(cut(workload, "pipeline"))), times_s)


@lru_cache(maxsize=KEPT)
def _instructions(shape: PipelineShape) -> tuple[Instruction, ...]:
    return pipeline_instructions(
        shape.schedule, shape.stages, shape.microbatches, chunks=shape.chunks, updates=shape.updates
    )


@lru_cache(maxsize=KEPT)
def _dag(shape: PipelineShape, transfers: tuple[float, ...]) -> Dag:
    return build_dag(_instructions(shape), transfers)
