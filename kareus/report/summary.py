"""The summary of a workload: what every method costs, and what the chosen plans save; as rows and as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain
from kareus.pipeline.compare import FRONTIER_BASELINE, THROUGHPUT_BASELINE, frontier_improvement, max_throughput
from kareus.plan.document import Plan
from kareus.report.inputs import ReportInputs

DASH = "\u2013"
COSTS = ("time_s", "energy_j", "static_energy_j", "dynamic_energy_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """The fastest plan of a method against `sequential`, and its frontier against that of `sequential+perseus`."""

    method: str
    time_s: float
    energy_j: float
    """Of all GPUs, as the next two."""
    static_energy_j: float
    dynamic_energy_j: float
    time_reduction_percent: float | None = None
    """None for the baseline itself, as the next three."""
    energy_reduction_percent: float | None = None
    iso_time_energy_reduction_percent: float | None = None
    """None also where no plan is fast enough."""
    iso_energy_time_reduction_percent: float | None = None
    """None also where no plan is frugal enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One chosen plan, against the fastest plan of `sequential`."""

    selector: str
    method: str
    time_s: float
    energy_j: float
    static_energy_j: float
    dynamic_energy_j: float
    gap: float
    """Certified gap of its energy to the lower bound, as a fraction."""
    time_reduction_percent: float
    energy_reduction_percent: float


def method_rows(iteration: pl.DataFrame) -> list[MethodRow]:
    """One row for each method of an `ITERATION` table, in its order.

    Raises:
        ArtifactError: the table lacks one of the baselines.
    """
    compared: dict[str, dict[str, Any]] = {method: {"method": method} for method in iteration["method"]}
    records = [*map(to_plain, max_throughput(iteration)), *map(to_plain, frontier_improvement(iteration))]
    for record in records:
        compared[record["method"]] |= record
    return [MethodRow(**_fastest(iteration, method), **comparison) for method, comparison in compared.items()]


def plan_rows(iteration: pl.DataFrame, plans: Sequence[Plan]) -> list[PlanRow]:
    """One row for each chosen plan."""
    costs = [
        {
            "selector": plan.selector,
            "method": plan.method,
            **{name: getattr(plan.prediction, name) for name in COSTS},
            "gap": plan.prediction.energy_j / plan.prediction.lower_bound_j - 1,
        }
        for plan in plans
    ]
    return [PlanRow(**row) for row in with_reductions(pl.DataFrame(costs), iteration).to_dicts()]


def with_reductions(plans: pl.DataFrame, iteration: pl.DataFrame) -> pl.DataFrame:
    """Append to `plans` what each saves against the fastest plan of `sequential`."""
    baseline = _fastest(iteration, THROUGHPUT_BASELINE)
    return plans.with_columns(
        time_reduction_percent=100 * (1 - pl.col("time_s") / baseline["time_s"]),
        energy_reduction_percent=100 * (1 - pl.col("energy_j") / baseline["energy_j"]),
    )


def _fastest(iteration: pl.DataFrame, method: str) -> dict[str, Any]:
    """Costs of the fastest plan of a method that the table has."""
    return iteration.filter(pl.col("method") == method).sort("time_s", "energy_j").select(COSTS).row(0, named=True)


def summary_text(inputs: ReportInputs) -> str:
    """The summary for a terminal of 100 columns: plain text, aligned, ending in a line feed."""
    methods = method_rows(inputs.iteration)
    blocks = [
        [inputs.workload, f"{inputs.testbed.label}, {inputs.gpus} GPUs"],
        [f"Max throughput: the fastest plan of each method; reductions against {THROUGHPUT_BASELINE}"],
        _max_throughput(methods),
        [f"Frontier improvement: reductions against {FRONTIER_BASELINE}"],
        _frontier_improvement(methods),
        [f"Chosen plans: reductions against {THROUGHPUT_BASELINE} at max throughput"],
        _chosen_plans(plan_rows(inputs.iteration, inputs.plans)),
        [f"{DASH} no plan of the method satisfies the constraint, or the method is the baseline itself"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _max_throughput(rows: Sequence[MethodRow]) -> list[str]:
    cells = [(row.method, *_cost(row), *_reductions(row)) for row in rows]
    heads = ("method", "time s", "energy kJ", "static kJ", "dynamic kJ", "time less", "energy less")
    return _table(heads, cells)


def _frontier_improvement(rows: Sequence[MethodRow]) -> list[str]:
    cells = [
        (row.method, _percent(row.iso_time_energy_reduction_percent), _percent(row.iso_energy_time_reduction_percent))
        for row in rows
        if row.method != FRONTIER_BASELINE
    ]
    return _table(("method", "iso-time energy less", "iso-energy time less"), cells)


def _chosen_plans(rows: Sequence[PlanRow]) -> list[str]:
    cells = [
        (row.selector, row.method, *_cost(row)[:2], *_reductions(row), _percent(100 * row.gap, digits=2))
        for row in rows
    ]
    return _table(("selector", "method", "time s", "energy kJ", "time less", "energy less", "gap"), cells, texts=2)


def _cost(row: MethodRow | PlanRow) -> tuple[str, ...]:
    energies_j = (row.energy_j, row.static_energy_j, row.dynamic_energy_j)
    return f"{row.time_s:.3f}", *(f"{energy_j / 1e3:.2f}" for energy_j in energies_j)


def _reductions(row: MethodRow | PlanRow) -> tuple[str, str]:
    return _percent(row.time_reduction_percent), _percent(row.energy_reduction_percent)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> list[str]:
    """Lay out cells in columns: the first `texts` to the left, numbers to the right, under a rule."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    rule = ["\u2500" * width for width in widths]
    return [
        "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, rule, *rows)
    ]


def _percent(value: float | None, *, digits: int = 1) -> str:
    return DASH if value is None else f"{round(value, digits) + 0.0:.{digits}f} %"  # + 0.0 turns -0.0 into 0.0
