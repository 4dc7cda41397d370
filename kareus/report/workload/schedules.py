"""Schedules of all plans of the frontiers, small enough for a page, which shows the one that is clicked on.

A plan is, for each instruction in the order of `instructions`, a row of `points` and how long its stage waited before
it, and its power over time. `static/page.js` adds these up to the rows of the figure.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from kareus.artifacts.tables import Row
from kareus.frontiers.tables import MICROBATCH
from kareus.graph.instruction import InstructionKey
from kareus.pipeline.clock_changes import PricedChange, priced_changes
from kareus.pipeline.compare import OURS
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.methods import point_method
from kareus.pipeline.solver.dag import Dag, earliest_starts, iteration_dag
from kareus.plans.grid_power import PowerSeries
from kareus.plans.power import InstructionRun, steps_of_runs
from kareus.report.charts import columns_of
from kareus.report.workload.inputs import ReportInputs
from kareus.report.workload.timeline import MICROSECONDS, instruction_label, seen_moments_s
from kareus.workload.slices import cut

MOST_INSTRUCTIONS = 50_000
"""Of all plans together: about a megabyte."""
PER_SECOND = 10**MICROSECONDS


def schedules(inputs: ReportInputs) -> dict[str, Any]:
    """Return the schedules as plain data: `instructions`, `points`, and `plans` by method and number.

    Where there are too many, other methods are left out, then plans of `kareus` at equal distances.
    """
    config = cut(inputs.configured, "pipeline")
    keys, dag = [instruction.key for instruction in instructions_of(config)], iteration_dag(config)
    points = {MICROBATCH.key_of(row): row for row in inputs.microbatch.iter_rows(named=True)}
    used: dict[tuple[Any, ...], int] = {}
    plans: dict[str, dict[str, list[list[int]]]] = {}
    for row in _affordable(inputs.iteration, MOST_INSTRUCTIONS // len(keys)):
        method = point_method(row["method"])
        chosen = [(method, k.stage, k.chunk, str(k.direction), n) for k, n in zip(keys, row["points"], strict=True)]
        numbers = [used.setdefault(key, len(used)) for key in chosen]
        (changes,) = priced_changes(config, inputs.microbatch, row["method"], [row["points"]])
        times_us = [round(points[key]["time_s"] * PER_SECOND) for key in chosen]
        gaps = _gaps_us(keys, dag, times_us, [round(change.time_s * PER_SECOND) for change in changes])
        series = _power_series(inputs, row, keys, dag, [points[key] for key in chosen], changes)
        plans.setdefault(row["method"], {})[str(row["plan"])] = [numbers, gaps, *_power(series)]
    return {
        "instructions": {
            "stage": [key.stage for key in keys],
            "label": [instruction_label(key, is_chunked=any(k.chunk for k in keys)) for key in keys],
        },
        "points": columns_of(pl.DataFrame([_point(points[key]) for key in used])),
        "plans": plans,
    }


def _affordable(iteration: pl.DataFrame, most: int) -> list[Row]:
    ours, others = (iteration.filter(is_ours) for is_ours in (pl.col("method") == OURS, pl.col("method") != OURS))
    kept = ours[:: max(1, -(-len(ours) // max(most, 1)))]
    return [*kept.iter_rows(named=True), *(others.iter_rows(named=True) if len(kept) + len(others) <= most else ())]


def _gaps_us(keys: list[InstructionKey], dag: Dag, times_us: list[int], changes_us: list[int]) -> list[int]:
    """Return how long each instruction starts after the one before it on its stage has ended; changes come first."""
    whole_s = [(time_us + change_us) / PER_SECOND for time_us, change_us in zip(times_us, changes_us, strict=True)]
    starts_us = [round(s * PER_SECOND) + c for s, c in zip(earliest_starts(dag, whole_s), changes_us, strict=True)]
    return list(_after_previous(keys, starts_us, times_us))


def _after_previous(keys: list[InstructionKey], starts_us: list[int], times_us: list[int]) -> Iterator[int]:
    ended: dict[int, int] = {}
    for key, start_us, time_us in zip(keys, starts_us, times_us, strict=True):
        yield start_us - ended.get(key.stage, 0)
        ended[key.stage] = start_us + time_us


def _power_series(
    inputs: ReportInputs,
    row: Row,
    keys: list[InstructionKey],
    dag: Dag,
    points: list[Row],
    changes: Sequence[PricedChange],
) -> PowerSeries:
    """Return the power of all GPUs over an iteration of a plan: a row of the iteration frontiers."""
    times_s = [point["time_s"] + change.time_s for point, change in zip(points, changes, strict=True)]
    stages: dict[int, list[InstructionRun]] = {}
    for key, point, change, start_s, time_s in zip(
        keys, points, changes, earliest_starts(dag, times_s), times_s, strict=True
    ):
        run = InstructionRun(start_s, time_s, point["energy_j"] + change.energy_j, point["frequency_mhz"])
        stages.setdefault(key.stage, []).append(run)
    return PowerSeries(*steps_of_runs(stages.values(), row["time_s"], inputs.gpus, inputs.configured.gpu))


def _power(series: PowerSeries) -> list[list[int]]:
    """Return microseconds between changes of power, watts from each on, and watts in means of the second before."""
    between_us = np.diff(np.rint(series.edges_s * PER_SECOND), prepend=0)
    means_w = series.seen_w(seen_moments_s(series)[::2])
    return [_rounded(values) for values in (between_us, [*series.powers_w, series.powers_w[-1]], means_w)]


def _rounded(values: Iterable[float]) -> list[int]:
    return [round(value) for value in values]


def _point(row: Row) -> Row:
    choices = (f"{c['partition']}: {c['sm_count']} SMs, beside {c['launch']}" for c in row["choices"])
    return {
        "time_us": round(row["time_s"] * PER_SECOND),
        "frequency_mhz": row["frequency_mhz"],
        "power_w": row["energy_j"] / row["time_s"],
        "energy_j": row["energy_j"],
        "runs": "; ".join([row["execution"], *choices]),
    }
