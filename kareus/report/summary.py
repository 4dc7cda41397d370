"""The summary of a workload: what every method costs, and what the chosen plans save; as rows and as text."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from kareus.plan.document import Plan
from kareus.report.inputs import ReportInputs

DASH = "\u2013"

TIME_BASELINE = "sequential"
FRONTIER_BASELINE = "sequential+perseus"


def _point(iteration, method):
    rows = iteration.filter(pl.col("method") == method).sort("time_s")
    return rows.row(0, named=True) if len(rows) else None


def _iso(iteration, method, limit, bound, value):
    base = iteration.filter(pl.col("method") == FRONTIER_BASELINE)
    rows = iteration.filter((pl.col("method") == method) & (pl.col(limit) <= base[limit].min() * 1.0000001))
    if method in (TIME_BASELINE, FRONTIER_BASELINE) or not len(rows):
        return None
    ref = base.sort(limit)[value][0]
    return 1 - rows[value].min() / ref


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One method at max throughput, and its frontier against that of `sequential+perseus` (paper, section 6.1)."""

    method: str
    time_s: float
    energy_j: float
    """Of all GPUs, as the next two."""
    static_energy_j: float
    dynamic_energy_j: float
    time_reduction: float | None
    """Fraction less than `sequential` takes; None in a table without `sequential`."""
    energy_reduction: float | None
    iso_time_energy_reduction: float | None
    """Fraction; None where no plan is fast enough, and for the baseline itself."""
    iso_energy_time_reduction: float | None
    """Fraction; None where no plan is frugal enough, and for the baseline itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One chosen plan, against `sequential` at max throughput."""

    selector: str
    method: str
    time_s: float
    energy_j: float
    static_energy_j: float
    dynamic_energy_j: float
    time_reduction: float | None
    energy_reduction: float | None
    gap: float
    """Certified gap of its energy to the lower bound, as a fraction."""


def method_rows(iteration: pl.DataFrame) -> list[MethodRow]:
    """One row for each method of an `ITERATION` table, in its order."""
    rows = []
    base = _point(iteration, TIME_BASELINE)
    for method in iteration["method"].unique(maintain_order=True):
        p = _point(iteration, method)
        rows.append(
            MethodRow(
                method=method,
                time_s=p["time_s"],
                energy_j=p["energy_j"],
                static_energy_j=p["static_energy_j"],
                dynamic_energy_j=p["dynamic_energy_j"],
                time_reduction=None if p is base or method == TIME_BASELINE else 1 - p["time_s"] / base["time_s"],
                energy_reduction=None if method == TIME_BASELINE else 1 - p["energy_j"] / base["energy_j"],
                iso_time_energy_reduction=_iso(iteration, method, "time_s", None, "energy_j"),
                iso_energy_time_reduction=_iso(iteration, method, "energy_j", None, "time_s"),
            )
        )
    return rows


def plan_rows(iteration: pl.DataFrame, plans: Sequence[Plan]) -> list[PlanRow]:
    """One row for each plan, against the fastest `sequential` plan of an `ITERATION` table."""
    base = _point(iteration, TIME_BASELINE)
    return [
        PlanRow(
            selector=plan.selector,
            method=plan.method,
            time_s=plan.prediction.time_s,
            energy_j=plan.prediction.energy_j,
            static_energy_j=plan.prediction.static_energy_j,
            dynamic_energy_j=plan.prediction.dynamic_energy_j,
            time_reduction=1 - plan.prediction.time_s / base["time_s"],
            energy_reduction=1 - plan.prediction.energy_j / base["energy_j"],
            gap=plan.prediction.energy_j / plan.prediction.lower_bound_j - 1,
        )
        for plan in plans
    ]


def with_reductions(iteration):
    base = _point(iteration, TIME_BASELINE)
    return iteration.with_columns(
        time_reduction=1 - pl.col("time_s") / base["time_s"],
        energy_reduction=1 - pl.col("energy_j") / base["energy_j"],
    )


def summary_text(inputs: ReportInputs) -> str:
    """The summary for a terminal of 100 columns: plain text, aligned, ending in a line feed."""
    methods = method_rows(inputs.iteration)
    blocks = [
        [inputs.workload, f"{inputs.testbed.label}, {inputs.gpus} GPUs"],
        [f"Max throughput: the fastest plan of each method; reductions against {TIME_BASELINE}"],
        _max_throughput(methods),
        [f"Frontier improvement: reductions against {FRONTIER_BASELINE}"],
        _frontier_improvement(methods),
        [f"Chosen plans: reductions against {TIME_BASELINE} at max throughput"],
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
        (row.method, _percent(row.iso_time_energy_reduction), _percent(row.iso_energy_time_reduction))
        for row in rows
        if row.method not in (TIME_BASELINE, FRONTIER_BASELINE)
    ]
    return _table(("method", "iso-time energy less", "iso-energy time less"), cells)


def _chosen_plans(rows: Sequence[PlanRow]) -> list[str]:
    cells = [
        (row.selector, row.method, *_cost(row)[:2], *_reductions(row), _percent(row.gap, digits=2)) for row in rows
    ]
    return _table(("selector", "method", "time s", "energy kJ", "time less", "energy less", "gap"), cells, texts=2)


def _cost(row: MethodRow | PlanRow) -> tuple[str, ...]:
    energies_j = (row.energy_j, row.static_energy_j, row.dynamic_energy_j)
    return f"{row.time_s:.3f}", *(f"{energy_j / 1e3:.2f}" for energy_j in energies_j)


def _reductions(row: MethodRow | PlanRow) -> tuple[str, str]:
    return _percent(row.time_reduction), _percent(row.energy_reduction)


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


def _percent(fraction: float | None, *, digits: int = 1) -> str:
    return DASH if fraction is None else f"{fraction * 100:.{digits}f} %"
