"""What plans cost on chips that stay warm: energies of iterations at the temperatures that the GPUs settle to.

Partitions and instructions are measured just after a cooldown, so their energies lack what a warm chip leaks more. That
is linear in the temperature and about the same share of every plan, so it is added to finished plans; what is planned
with are the energies as they were measured.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from kareus.gpu_model.thermal import BusyTime, repeated_work
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.methods import point_method


def with_warm_energy(
    config: PipelineSlice, microbatch: pl.DataFrame, rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return plans with their `warm_energy_j`, which is None where a temperature, or that of the air, is not known.

    Args:
        config: the pipeline.
        microbatch: the table `MICROBATCH` that the plans are made of.
        rows: of `ITERATION`, plans of one method.
    """
    if not rows:
        return []
    points = _busy_times(microbatch, point_method(rows[0]["method"]))
    kinds = [i.key.kind for i in instructions_of(config)]
    found = []
    for row in rows:
        stages: list[list[BusyTime]] = [[] for _ in range(config.parallelism.pp)]
        for kind, point in zip(kinds, row["points"], strict=True):
            stages[kind.stage].append(points[kind, point])
        found.append(row | {"warm_energy_j": warm_energy_j(config, stages, row["time_s"])})
    return found


def warm_energy_j(config: PipelineSlice, stages: Sequence[Sequence[BusyTime]], time_s: float) -> float | None:
    """Return the energy of all GPUs over an iteration; None where a temperature, or that of the air, is not known.

    Args:
        config: the pipeline.
        stages: instructions of each stage.
        time_s: iteration time.
    """
    energy_j = 0.0
    for own in stages:
        work = repeated_work(own, time_s, config.gpu.blocking_power_w)
        if work is None or config.ambient_c is None:
            return None
        energy_j += work.settled_j(config.ambient_c, config.gpu.coefficients) * config.parallelism.gpus_per_stage
    return energy_j


def _busy_times(microbatch: pl.DataFrame, method: str) -> dict[tuple[InstructionKind, int], BusyTime]:
    """Return what one GPU does in an instruction, by its kind and the number of its point."""
    names = ("stage", "chunk", "direction", "point", "time_s", "energy_j", "temperature_c")
    return {
        (InstructionKind(stage, chunk, Direction(direction)), point): BusyTime(*cost)
        for stage, chunk, direction, point, *cost in microbatch.filter(pl.col("method") == method)
        .select(names)
        .iter_rows()
    }
