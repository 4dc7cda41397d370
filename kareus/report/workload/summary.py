"""The tables of a workload: what every method costs, what the chosen plans save, what searches took; and as text."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from kareus.artifacts.provenance import TestbedIdentity
from kareus.artifacts.records import to_plain
from kareus.frontiers.compose import MOST_POINTS
from kareus.pipeline.compare import (
    COSTS,
    FRONTIER_BASELINE,
    OURS,
    THROUGHPUT_BASELINE,
    MethodComparison,
    with_reductions,
)
from kareus.pipeline.spread import SavingsErrors
from kareus.plans.document import Plan
from kareus.plans.units import SECONDS_PER_HOUR
from kareus.report.savings_words import ISO_NOTE
from kareus.report.sheets import DASH, Sheet, blocks_text, percent, percent_within, sheet_of, sheet_text
from kareus.report.workload.effort import SearchEffort, search_efforts
from kareus.report.workload.inputs import PartitionSearch, ReportInputs
from kareus.report.workload.savings import ERRORS_NOTE, PlanErrors, Savings
from kareus.report.workload.tables import SAVINGS
from kareus.search.tables import CANDIDATES
from kareus.training.comparison import RunComparison
from kareus.training.tables import ITERATIONS
from kareus.workload.config import NO_COLLECTIVES, NO_HALVES, nothing_to_overlap

NO_PLAN = f"{DASH}: no plan of the method satisfies the constraint, or the method is the baseline itself"
NANOBATCHING = "nanobatching"
"""Method that is planned for every workload whose microbatches can be halved."""
NOT_SEARCHED = "Nothing overlaps: the planned methods search no partitions; plan with --method kareus for these."
MEASURED_WHOLE = "Nothing overlaps: forwards and backwards were measured whole, in the job itself, at each clock."
WIDTH = 100
"""Columns of the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One chosen plan, against that of `sequential`."""

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


_COMPARED: tuple[tuple[str, Callable[[tuple[MethodComparison | PlanRow, SavingsErrors | PlanErrors]], str]], ...] = (
    ("time saved", lambda row: percent_within(row[0].time_reduction_percent, row[1].time_reduction)),
    ("energy saved", lambda row: percent_within(row[0].energy_reduction_percent, row[1].energy_reduction)),
    ("time s", lambda row: f"{row[0].time_s:.3f}"),
    ("energy kJ", lambda row: f"{row[0].energy_j / 1e3:.2f}"),
)
"""Columns of what a plan costs, and what it saves within its standard error."""


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
    sheets = [*method_sheets(inputs.savings), plans_sheet(inputs)]
    blocks = [
        [inputs.workload, f"{inputs.testbed.label}, {inputs.gpus} GPUs", inputs.testbed.detail, *overlap_note(inputs)],
        *(block for sheet in sheets for block in sheet_text(sheet)),
        *([lines] if (lines := update_lines(list(inputs.plans.values()))) else []),
        *([*_search(effort), *_wrapped(cut_short(inputs.searches))] for effort in search_efforts(inputs.searches)[:1]),
        *(sheet_text(runs_sheet(inputs.runs, inputs.testbed)) if inputs.runs else []),
        [NO_PLAN, *notes(inputs)],
    ]
    return blocks_text(blocks)


def update_lines(plans: Sequence[Plan]) -> list[str]:
    """Return for each plan of a whole iteration how much of it is the update of the weights."""
    return [
        f"Update of the weights in plan {plan.selector} of {plan.method}: {plan.update_s:.3f} of "
        f"{plan.prediction.time_s:.3f} s"
        for plan in plans
        if plan.update_s
    ]


def overlap_note(inputs: ReportInputs) -> list[str]:
    """Return the reason why nothing overlaps, as one line; no line where something can."""
    if OURS not in inputs.iteration["method"]:
        return [nothing_to_overlap(inputs.configured) or NOT_SEARCHED]
    if NANOBATCHING not in inputs.iteration["method"]:
        return [NO_HALVES if inputs.searches else nothing_to_overlap(inputs.configured) or MEASURED_WHOLE]
    return [] if inputs.searches else [NO_COLLECTIVES]


def notes(inputs: ReportInputs) -> list[str]:
    """Return notes on the figures: the meaning of errors, and frontiers that are not exact."""
    has_errors = any(any(to_plain(saved.errors).values()) for saved in inputs.savings)
    thinned = inputs.microbatch.filter("is_thinned").n_unique(["stage", "chunk", "direction", "frequency_mhz"])
    return [*([ERRORS_NOTE] if has_errors else []), *([thinned_note(thinned)] if thinned else [])]


def thinned_note(clocks: int) -> str:
    """Return the note on frontiers with clocks at which combinations were left out."""
    return (
        f"not exact: at {clocks} clocks of instructions more than {MOST_POINTS} combinations were non-dominated, "
        "and as many kept"
    )


def method_sheets(savings: Sequence[Savings]) -> list[Sheet]:
    """Max throughput of every method, and frontier improvement where any has one (paper, section 6.1, "Metrics")."""
    throughput = sheet_of(
        f"Max throughput: the least time of each method; reductions against {THROUGHPUT_BASELINE}",
        [(saved.compared, saved.errors) for saved in savings],
        (
            ("method", lambda row: row[0].method),
            *_COMPARED,
            ("static kJ", lambda row: f"{row[0].static_energy_j / 1e3:.2f}"),
            ("dynamic kJ", lambda row: f"{row[0].dynamic_energy_j / 1e3:.2f}"),
        ),
        source=SAVINGS.name,
        ours=OURS,
    )
    improvement = sheet_of(
        f"Frontier improvement: reductions against {FRONTIER_BASELINE}",
        [saved for saved in savings if saved.compared.method != FRONTIER_BASELINE],
        (
            ("method", lambda saved: saved.compared.method),
            (
                "iso-time energy saved",
                lambda saved: percent_within(
                    saved.compared.iso_time_energy_reduction_percent, saved.errors.iso_time_energy_reduction
                ),
            ),
            (
                "iso-energy time saved",
                lambda saved: percent_within(
                    saved.compared.iso_energy_time_reduction_percent, saved.errors.iso_energy_time_reduction
                ),
            ),
        ),
        source=SAVINGS.name,
        note=ISO_NOTE,
        ours=OURS,
    )
    return [throughput, *([improvement] if any({*row.cells[1:]} - {DASH} for row in improvement.rows) else [])]


def plans_sheet(inputs: ReportInputs) -> Sheet:
    """The chosen plans."""
    rows = plan_rows(inputs.iteration, list(inputs.plans.values()))
    return sheet_of(
        f"Chosen plans: reductions against {THROUGHPUT_BASELINE} at max throughput",
        list(zip(rows, inputs.plan_errors.values(), strict=True)),
        (
            ("selector", lambda row: row[0].selector),
            ("method", lambda row: row[0].method),
            *_COMPARED,
            ("gap", lambda row: percent(100 * row[0].gap, digits=2)),
        ),
        note="Gap: its energy is at most so much above the least possible in its time",
        texts=2,
    )


def runs_sheet(runs: Sequence[RunComparison], testbed: TestbedIdentity) -> Sheet:
    """Return the table of measured and predicted iterations."""
    verb = "played back on warm chips" if testbed.kind == "simulated" else "run"
    return sheet_of(
        f"End to end: the plan `fastest` of each method, {verb} for {runs[0].iterations} iterations",
        runs,
        (
            ("method", lambda run: run.method),
            ("predicted s", lambda run: f"{run.predicted_time_s:.3f}"),
            ("ran s", lambda run: f"{run.time_s:.3f}"),
            ("off by", lambda run: _above(run.time_percent)),
            ("predicted kJ", lambda run: f"{run.predicted_energy_j / 1e3:.2f}"),
            ("ran kJ", lambda run: DASH if run.energy_j is None else f"{run.energy_j / 1e3:.2f}"),
            ("off by", lambda run: _above(run.energy_percent)),
        ),
        source=ITERATIONS.name,
        ours=OURS,
    )


def efforts_sheet(searches: Sequence[PartitionSearch]) -> Sheet:
    """Return the table of results and cost of searches, by partition."""
    efforts = search_efforts(searches)
    passes = [choice.name for choice in efforts[0].passes] if efforts else []
    return sheet_of(
        "Searches by pass and by time",
        efforts,
        (
            ("partition", lambda effort: effort.partition),
            ("measured", lambda effort: str(effort.measured)),
            ("on the frontier", lambda effort: str(effort.on_frontier)),
            *((("share of it found by", name), partial(_share_found, name)) for name in passes),
            (("time", "profiling min"), lambda effort: f"{effort.profiling_s / 60:.1f}"),
            (("time", "of it time-only"), lambda effort: f"{effort.looking_s / 60:.1f}"),
            (("time", "GPU-hours"), lambda effort: f"{effort.gpu_s / SECONDS_PER_HOUR:.2f}"),
            (("time", "optimisation min"), lambda effort: f"{effort.optimisation_s / 60:.2f}"),
            (("time", "profiling share"), lambda effort: percent(100 * effort.profiling_share)),
        ),
        source=CANDIDATES.name,
        note="Profiling is the testbed's clock, virtual if it is simulated; optimisation is the planning machine's, "
        f"spent on surrogates and acquisition. Several passes may choose one candidate. {cut_short(searches)}".rstrip(),
    )


def _share_found(name: str, effort: SearchEffort) -> str:
    """Return the share of a search's frontier that a pass found; a dash where the search had no such pass."""
    shares = {each.name: effort.share_percent(each) for each in effort.passes}
    return percent(shares.get(name), digits=0)


def cut_short(searches: Sequence[PartitionSearch]) -> str:
    """Return which searches their budget ended, as a sentence; empty if none."""
    last = [(search.partition, search.rounds.row(-1, named=True)) for search in searches]
    names = ", ".join(f"{name} ({row['stop']})" for name, row in last if row["is_cut_short"])
    return f"Ended before their stopping rule was met: {names}." if names else ""


def _search(effort: SearchEffort) -> list[str]:
    passes = ", ".join(f"{p.name} {percent(effort.share_percent(p))}" for p in effort.passes)
    hours = effort.profiling_s / SECONDS_PER_HOUR
    looks = f", time-only {percent(100 * effort.looking_s / effort.profiling_s)} of it" if effort.looking_s else ""
    origin = f"Search: of {effort.on_frontier} candidates on the frontiers, found by {passes}"
    took = (
        f"Search time: profiling {hours:.2f} h of the testbed's clock "
        f"({percent(100 * effort.profiling_share)}){looks}, {effort.gpu_s / SECONDS_PER_HOUR:.2f} GPU-hours, "
        f"optimisation {effort.optimisation_s:.1f} s"
    )
    return _wrapped(origin, took)


def _wrapped(*texts: str) -> list[str]:
    return [line for text in texts for line in textwrap.wrap(text, WIDTH, break_on_hyphens=False)]


def _above(value: float | None) -> str:
    return DASH if value is None else f"{'+' if round(value, 1) > 0 else ''}{percent(value)}"
