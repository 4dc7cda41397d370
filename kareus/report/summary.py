"""The summary of a workload: what every method costs, and what the chosen plans save; as rows and as text."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from kareus.pipeline.compare import (
    COSTS,
    FRONTIER_BASELINE,
    THROUGHPUT_BASELINE,
    MethodComparison,
    compare_methods,
    with_reductions,
)
from kareus.plan.document import Plan
from kareus.report.effort import SearchEffort, search_efforts
from kareus.report.inputs import ReportInputs
from kareus.report.text import DASH, percent, table

WIDTH = 100
"""Columns of the terminal."""


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


def summary_text(inputs: ReportInputs) -> str:
    """The summary for a terminal of 100 columns: plain text, aligned, ending in a line feed."""
    methods = compare_methods(inputs.iteration)
    blocks = [
        [inputs.workload, f"{inputs.testbed.label}, {inputs.gpus} GPUs", inputs.testbed.detail],
        [f"Max throughput: the fastest plan of each method; reductions against {THROUGHPUT_BASELINE}"],
        _max_throughput(methods),
        [f"Frontier improvement: reductions against {FRONTIER_BASELINE}"],
        _frontier_improvement(methods),
        [f"Chosen plans: reductions against {THROUGHPUT_BASELINE} at max throughput"],
        _chosen_plans(plan_rows(inputs.iteration, list(inputs.plans.values()))),
        *(_search(effort) for effort in search_efforts(inputs.searches)[:1]),
        *_runs(inputs),
        [f"{DASH} no plan of the method satisfies the constraint, or the method is the baseline itself"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _max_throughput(rows: Sequence[MethodComparison]) -> list[str]:
    cells = [(row.method, *_cost(row), *_reductions(row)) for row in rows]
    heads = ("method", "time s", "energy kJ", "static kJ", "dynamic kJ", "time saved", "energy saved")
    return table(heads, cells)


def _frontier_improvement(rows: Sequence[MethodComparison]) -> list[str]:
    cells = [
        (row.method, percent(row.iso_time_energy_reduction_percent), percent(row.iso_energy_time_reduction_percent))
        for row in rows
        if row.method != FRONTIER_BASELINE
    ]
    return table(("method", "iso-time energy saved", "iso-energy time saved"), cells)


def _chosen_plans(rows: Sequence[PlanRow]) -> list[str]:
    cells = [
        (row.selector, row.method, *_cost(row)[:2], *_reductions(row), percent(100 * row.gap, digits=2)) for row in rows
    ]
    return table(("selector", "method", "time s", "energy kJ", "time saved", "energy saved", "gap"), cells, texts=2)


def _search(effort: SearchEffort) -> list[str]:
    passes = ", ".join(f"{p.name} {percent(100 * p.on_frontier / effort.on_frontier)}" for p in effort.passes)
    hours = effort.profiling_s / 3600
    looks = f", looks {percent(100 * effort.looking_s / effort.profiling_s)} of it" if effort.looking_s else ""
    found = f"Search: of {effort.on_frontier} candidates on the frontiers, found by {passes}"
    took = (
        f"Search time: profiling {hours:.2f} h of the testbed's clock "
        f"({percent(100 * effort.profiling_share)}){looks}, optimisation {effort.optimisation_s:.1f} s"
    )
    return [*textwrap.wrap(found, WIDTH), *textwrap.wrap(took, WIDTH)]


def _runs(inputs: ReportInputs) -> list[list[str]]:
    """What ran beside what was predicted, if anything ran."""
    if not inputs.runs:
        return []
    verb = "played back" if inputs.testbed.kind == "simulated" else "run"
    head = f"End to end: the fastest plan of each method, {verb} for {inputs.runs[0].iterations} iterations"
    heads = ("method", "predicted s", "ran s", "off by", "predicted kJ", "ran kJ", "off by")
    cells = [
        (
            row.method,
            f"{row.predicted_time_s:.3f}",
            f"{row.time_s:.3f}",
            f"{row.time_percent:+.1f} %",
            f"{row.predicted_energy_j / 1e3:.2f}",
            DASH if row.energy_j is None else f"{row.energy_j / 1e3:.2f}",
            DASH if row.energy_percent is None else f"{row.energy_percent:+.1f} %",
        )
        for row in inputs.runs
    ]
    return [[head], table(heads, cells)]


def _cost(row: MethodComparison | PlanRow) -> tuple[str, ...]:
    energies_j = (row.energy_j, row.static_energy_j, row.dynamic_energy_j)
    return f"{row.time_s:.3f}", *(f"{energy_j / 1e3:.2f}" for energy_j in energies_j)


def _reductions(row: MethodComparison | PlanRow) -> tuple[str, str]:
    return percent(row.time_reduction_percent), percent(row.energy_reduction_percent)
