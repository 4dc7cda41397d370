"""Predicted and measured values of every kind of answer, as points of figures: one panel for each GPU and quantity."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from kareus.arrays import Array
from kareus.evidence.frontiers.answer import FrontierAnswer, ReductionAnswer
from kareus.evidence.iterations import IterationAnswer
from kareus.evidence.kernels.answer import KernelAnswer
from kareus.evidence.kernels.counted import power_counts
from kareus.evidence.kernels.rows import KernelKind
from kareus.evidence.memory import MemoryAnswer
from kareus.evidence.node_power import PowerAnswer
from kareus.evidence.validation import ValidationAnswer

CELLS = (160, 60)
"""Points of large files are counted in so many cells along either axis of their panel, and each cell is drawn once."""
RATIOS = (0.5, 2.0)
"""Ratios of predicted to measured values that figures end at."""
FEW = 1000
"""Rows of a file whose points are all drawn."""
TIME = re.compile("time_(reduction|increase)")
"""Metrics of reductions that are of time; the others are of energy."""
SCHEMA = {
    "panel": pl.String,
    "group": pl.String,
    "what": pl.String,
    "measured": pl.Float64,
    "predicted": pl.Float64,
    "rows": pl.Int64,
}
"""Columns of points: panel and entry of the legend, name of a mark, values in base units, rows that a mark is of."""


def points_of(answer: ValidationAnswer) -> pl.DataFrame:
    """Return the points of an answer, with the columns of `SCHEMA`."""
    match answer:
        case KernelAnswer():
            return _kernels(answer)
        case IterationAnswer():
            return _iterations(answer)
        case PowerAnswer():
            return _powers(answer)
        case MemoryAnswer():
            return _memory(answer)
        case FrontierAnswer():
            return _frontiers(answer)
        case ReductionAnswer():
            return _reductions(answer)


def _kernels(answer: KernelAnswer) -> pl.DataFrame:
    rows, predicted = answer.kernels, answer.predicted
    if rows.kind is KernelKind.COLLECTIVE:
        groups = rows.collective.tolist()
    else:
        groups = [
            f"{number_format}, {software}"
            for number_format, software in zip(rows.number_format, rows.software, strict=True)
        ]
    read = power_counts(rows)
    times = _frame("time (s)", rows.gpu.tolist(), groups, rows.time_s, predicted.time_s)
    powers = _frame("power (W)", rows.gpu.tolist(), groups, rows.power_w, predicted.power_w)
    return pl.concat([_thinned(times), _thinned(powers.filter(pl.Series(read)))])


def _frame(
    quantity: str, gpus: Sequence[str], groups: Sequence[str], measured: Array, predicted: Array
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "panel": [f"{gpu}, {quantity}" for gpu in gpus],
            "group": groups,
            "what": groups,
            "measured": measured,
            "predicted": predicted,
            "rows": np.ones(len(measured), dtype=np.int64),
        },
        schema=SCHEMA,
    )


def _thinned(points: pl.DataFrame) -> pl.DataFrame:
    """Return the centre of each cell that has points; all points where there are few."""
    if len(points) <= FEW:
        return points
    low, high = (getattr(pl.col("measured").log10(), end)().over("panel") for end in ("min", "max"))
    across, up = CELLS
    width = (high - low) / across
    height = math.log10(RATIOS[1] / RATIOS[0]) / up
    ratio = (pl.col("predicted") / pl.col("measured")).clip(*RATIOS).log10()
    x, y = (
        (value / size).round() * size for value, size in ((pl.col("measured").log10() - low, width), (ratio, height))
    )
    cells = points.with_columns((10 ** (low + x)).alias("x"), (10**y).alias("ratio"))
    return (
        cells.group_by("panel", "group", "what", "x", "ratio", maintain_order=True)
        .agg(pl.col("rows").sum())
        .select(
            "panel",
            "group",
            "what",
            pl.col("x").alias("measured"),
            (pl.col("x") * pl.col("ratio")).alias("predicted"),
            "rows",
        )
    )


def _iterations(answer: IterationAnswer) -> pl.DataFrame:
    return _listed(
        (f"{run.row.family}, time (s)", run.row.gpu, run.row.model, run.row.iteration_time_s, run.predicted.time_s)
        for run in answer.scored
    )


def _powers(answer: PowerAnswer) -> pl.DataFrame:
    times = [("iteration time (s)", r.model, f"line {r.line}", r.time_s, r.predicted.time_s) for r in answer.rows]
    powers = [
        ("power of a node (W)", r.model, f"line {r.line}", r.node_power_w, r.predicted_node_power_w)
        for r in answer.rows
    ]
    return _listed([*powers, *times])


def _memory(answer: MemoryAnswer) -> pl.DataFrame:
    return _listed(
        ("allocated memory (GiB)", run.row.group, run.row.name, run.row.allocated_gib, run.estimate.allocated_gib)
        for run in answer.scored
        if run.row.counts
    )


def _frontiers(answer: FrontierAnswer) -> pl.DataFrame:
    rows = [row for row in answer.score.rows if row.scored]
    times = [
        ("iteration time (s)", r.method, f"{r.workload}, {r.point}", r.given_time_s, r.predicted_time_s) for r in rows
    ]
    energies = [
        (
            "energy of a GPU of each stage (J)",
            r.method,
            f"{r.workload}, {r.point}",
            r.given_energy_j,
            r.predicted_energy_j,
        )
        for r in rows
    ]
    return _listed([*times, *energies])


def _reductions(answer: ReductionAnswer) -> pl.DataFrame:
    return _listed(
        (
            "time (%)" if TIME.search(row.metric) else "energy (%)",
            row.method,
            f"{row.workload}, {row.table}, {row.metric}",
            row.given_pct,
            row.predicted_pct,
        )
        for row in answer.score.rows
    )


def _listed(rows: Iterable[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame([(*row, 1) for row in rows], schema=SCHEMA, orient="row")
