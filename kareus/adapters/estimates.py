"""Microbatch frontiers from what a sweep measured, with the standard errors that say when it may stop."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from kareus.artifacts.tables import Row
from kareus.frontiers.methods import microbatch_rows
from kareus.frontiers.microbatch import Point, frontier
from kareus.frontiers.tables import MICROBATCH
from kareus.gpu_model.gpu import Gpu
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.profile.programs import Execution
from kareus.profile.smoothing import Observation, smoothed

MeasuredPoints = Mapping[InstructionKind, Sequence[Point]]
"""Points of each kind of instruction, by rising clock."""


def measured_points(swept: Iterable[Row]) -> MeasuredPoints:
    """Estimate what every instruction takes at each clock.

    Visits are averaged over the ranks of a stage, and smoothed over clocks as the profiler smooths its measurements:
    the instructions of one direction change alike with the clock.

    Args:
        swept: rows of the table `SWEPT` of all ranks.
    """
    visits: dict[tuple[InstructionKind, int, int], list[Row]] = defaultdict(list)
    for row in swept:
        kind = InstructionKind(row["stage"], row["chunk"], Direction(row["direction"]))
        visits[kind, row["frequency_mhz"], row["visit"]].append(row)
    families: dict[Direction, list[tuple[InstructionKind, int, int]]] = defaultdict(list)
    for visit in sorted(visits):
        families[visit[0].direction].append(visit)
    points: dict[InstructionKind, list[Point]] = defaultdict(list)
    for of_family in families.values():
        kinds = sorted({kind for kind, _, _ in of_family})
        seen = [_observation(kinds.index(visit[0]), visit[1], visits[visit]) for visit in of_family]
        for (curve, frequency_mhz), estimate in sorted(smoothed(seen).items()):
            points[kinds[curve]].append(
                Point(
                    execution=Execution.SEQUENTIAL,
                    frequency_mhz=frequency_mhz,
                    time_s=estimate.time_s,
                    energy_j=estimate.energy_j,
                    time_error_s=estimate.time_error_s,
                    energy_error_j=estimate.energy_error_j,
                    is_power_limited=estimate.is_power_limited,
                )
            )
    return points


def frontier_error(points: MeasuredPoints, gpu: Gpu) -> float:
    """Return the largest relative standard error of a time or an energy of a point on a frontier."""
    return max(
        max(point.time_error_s / point.time_s, point.energy_error_j / point.energy_j)
        for of_kind in points.values()
        for point in frontier(of_kind, gpu.blocking_power_w)
    )


def measured_frontiers(points: MeasuredPoints, gpu: Gpu) -> pl.DataFrame:
    """Return the table `MICROBATCH` of measured instructions; each was executed as the job executes it."""
    rows = [row for kind in sorted(points) for row in microbatch_rows(kind, {Execution.SEQUENTIAL: points[kind]}, gpu)]
    return MICROBATCH.frame(rows)


def _observation(curve: int, frequency_mhz: int, rows: Sequence[Row]) -> Observation:
    """Return the mean over the ranks of a stage."""
    return Observation(
        curve,
        frequency_mhz,
        time_s=statistics.fmean(row["time_s"] for row in rows),
        energy_j=statistics.fmean(row["energy_j"] for row in rows),
        is_power_limited=any(row["is_power_limited"] for row in rows),
    )
