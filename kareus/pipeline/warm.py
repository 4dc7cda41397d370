"""Costs of plans on chips that stay warm: energies of iterations at the temperatures that the GPUs settle to.

Partitions and instructions are measured just after a cooldown, so their energies lack what a warm chip leaks more. That
is linear in the temperature and about the same share of every plan, so it is added to finished plans; what is planned
with are the energies as they were measured.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from kareus.gpu_model.thermal import BusyTime, repeated_work
from kareus.gpu_model.waiting import waited_j, waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pipeline.clock_changes import PricedChange, priced_changes
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_by_stage, instructions_of
from kareus.pipeline.methods import point_method
from kareus.pipeline.solver.dag import earliest_starts, iteration_dag


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
    method = rows[0]["method"]
    points = _points(microbatch, point_method(method))
    instructions, dag = instructions_of(config), iteration_dag(config)
    lanes = instructions_by_stage(instructions)
    found = []
    for row, changes in zip(rows, priced_changes(config, microbatch, method, [r["points"] for r in rows]), strict=True):
        ran = [points[i.key.kind, point] for i, point in zip(instructions, row["points"], strict=True)]
        waits_w = [waiting_power_w(config.gpu, clock) for clock, _ in ran]
        busy = [_changed(one, change) for (_, one), change in zip(ran, changes, strict=True)]
        times_s = [one.time_s for one in busy]
        starts_s = earliest_starts(dag, times_s)
        waits_j = [waited_j(lane, starts_s, times_s, waits_w, row["time_s"]) for lane in lanes]
        stages = [[busy[n] for n in lane] for lane in lanes]
        found.append(row | {"warm_energy_j": warm_energy_j(config, stages, row["time_s"], waits_j)})
    return found


def warm_energy_j(
    config: PipelineSlice, stages: Sequence[Sequence[BusyTime]], time_s: float, waits_j: Sequence[float]
) -> float | None:
    """Return the energy of all GPUs over an iteration; None where a temperature, or that of the air, is not known.

    Args:
        config: the pipeline.
        stages: instructions of each stage.
        time_s: iteration time.
        waits_j: by stage, energy with which one GPU waits in an iteration.
    """
    energy_j = 0.0
    for own, waiting_j in zip(stages, waits_j, strict=True):
        work = repeated_work(own, time_s, waiting_j)
        if work is None or config.ambient_c is None:
            return None
        energy_j += work.settled_j(config.ambient_c, config.gpu.coefficients) * config.parallelism.gpus_per_stage
    return energy_j


def _changed(busy: BusyTime, change: PricedChange) -> BusyTime:
    """Return an instruction with the change of clock that it begins with."""
    return BusyTime(busy.time_s + change.time_s, busy.energy_j + change.energy_j, busy.temperature_c)


def _points(microbatch: pl.DataFrame, method: str) -> dict[tuple[InstructionKind, int], tuple[int, BusyTime]]:
    """Return the clock of an instruction and what one GPU does in it, by its kind and the number of its point."""
    names = ("stage", "chunk", "direction", "point", "frequency_mhz", "time_s", "energy_j", "temperature_c")
    return {
        (InstructionKind(stage, chunk, Direction(direction)), point): (clock, BusyTime(*cost))
        for stage, chunk, direction, point, clock, *cost in microbatch.filter(pl.col("method") == method)
        .select(names)
        .iter_rows()
    }
