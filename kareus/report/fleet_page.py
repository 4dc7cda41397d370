"""The page of emulated fleets: tables in the form of the paper's (section 6.3), sections, and the text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from kareus.artifacts.tables import Row
from kareus.emulate.tables import HOURS
from kareus.model.config import model_words
from kareus.pareto import AS_FAST
from kareus.pipeline.compare import FRONTIER_BASELINE, OURS, THROUGHPUT_BASELINE
from kareus.plans.answer import fastest_answer
from kareus.plans.units import FEW_MONEY, less, scaled
from kareus.report.fleet_figures import fleet_figures
from kareus.report.fleet_inputs import (
    FleetComparison,
    FleetInputs,
    charges,
    compare_fleets,
    fleet_data,
    fleet_titles,
    fleets_of,
    has_hours,
)
from kareus.report.page import Page, Section
from kareus.report.savings_words import ISO_NOTE, WHICH_PLAN, savings_words
from kareus.report.sheets import DASH, Sheet, blocks_text, percent, sheet_of, sheet_text

NONE = "none"
"""Cell of what no plan of a method can do."""
AGAINST = f"vs {THROUGHPUT_BASELINE}"
"""Head of what is saved against the baseline."""


def fleets_page(inputs: FleetInputs, trust: str) -> Page:
    """Return the page.

    Args:
        inputs: what is reported.
        trust: for which trainer and GPU it is, and how far off it may be.
    """
    sections = fleet_sections(inputs)
    return Page(
        title=page_title(inputs),
        name=inputs.workload,
        testbeds=(inputs.testbed,),
        provenance=inputs.provenance,
        sections=tuple(sections),
        figures=tuple(fleet_figures(inputs)),
        tables=inputs.tables(),
        summary=fleets_text(inputs, sections),
        template="fleets.html",
        extra={"headline": headline(inputs), "lead": (*most_saved(inputs), trust)},
        data={"fleets": fleet_data(inputs), "as_fast": AS_FAST},
    )


def fleets_text(inputs: FleetInputs, sections: Sequence[Section]) -> str:
    """The summary for a terminal of 100 columns: plain text, aligned, ending in a line feed."""
    sheets = [sheet for section in sections for sheet in section.sheets]
    blocks = [
        [f"{inputs.workload}: emulated fleets", inputs.testbed.label, inputs.testbed.detail],
        *(block for sheet in sheets for block in sheet_text(sheet)),
        [f"{DASH} no plan of the method satisfies the constraint"],
    ]
    return blocks_text(blocks)


def page_title(inputs: FleetInputs) -> str:
    """Return what the fleets are, such as `Llama 3.3 70B: fleets of 10,240 and 5,120 GPUs, emulated`."""
    model = model_words(inputs.workload.partition("_")[0])
    *sizes, last = dict.fromkeys(f"{fleet.gpus:,}" for fleet in compare_fleets(inputs))
    named = f"{', '.join(sizes)} and {last}" if sizes else last
    return f"{model}: fleets of {named} GPUs, emulated"


def headline(inputs: FleetInputs) -> str:
    """Return what plans of `kareus` save over all fleets; empty without any."""
    fleets = fleets_of(inputs)
    ours = [fastest_answer(methods, OURS) for methods in fleets if OURS in methods["method"]]
    return savings_words(ours, f"{len(fleets)} fleets" if len(fleets) > 1 else "the fleet")


def most_saved(inputs: FleetInputs) -> tuple[str, ...]:
    """Return where plans of `kareus` save most beside stragglers and under power caps; nothing where they save none."""
    saved, where = max(_adapting(inputs), default=(0.0, ""))
    return (where,) if saved > 0 else ()


def _adapting(inputs: FleetInputs) -> Iterator[tuple[float, str]]:
    """Yield what plans of `kareus` save beside stragglers and under power caps, in percent and in words."""
    labels = fleet_titles(inputs)
    of = {fleet: f" ({label})" if len(labels) > 1 else "" for fleet, label in labels.items()}
    slowest = {(r["fleet"], r["slowdown"]): r for r in _of(inputs.stragglers, THROUGHPUT_BASELINE)}
    for row in _of(inputs.stragglers, OURS):
        base = slowest.get((row["fleet"], row["slowdown"]), {}).get("waiting_energy_j")
        saved = _saved(row["energy_j"], base)
        if saved is not None:
            beside = f"a straggler of {row['slowdown']:g}x{of[row['fleet']]}"
            yield saved, f"It saves most beside {beside}: {less(saved, 'energy')}."
    capped = {(r["fleet"], r["cap_w"]): r for r in _of(inputs.power_caps, THROUGHPUT_BASELINE)}
    for row in _of(inputs.power_caps, OURS):
        saved = _saved(row["time_s"], capped.get((row["fleet"], row["cap_w"]), {}).get("time_s"))
        if saved is not None:
            under = f"a cap of {scaled(row['cap_w'], 'W')}{of[row['fleet']]}"
            yield saved, f"It saves most under {under}: {less(saved, 'time')}."


def _of(table: pl.DataFrame, method: str) -> Iterator[Row]:
    return table.filter(pl.col("method") == method).iter_rows(named=True)


def fleet_sections(inputs: FleetInputs) -> list[Section]:
    """Sections of the page; scenarios that were not asked for are left out, and the name of the only fleet."""
    fleets = compare_fleets(inputs)
    shown = (lambda sheet: sheet) if len(fleets) > 1 else _without_fleet
    scenarios = [
        Section(title="Stragglers", sheets=(shown(_stragglers(inputs)),)),
        Section(title="Power caps", sheets=(shown(_power_caps(inputs)),)),
        Section(title="Hours of a series", sheets=(shown(_hours(inputs)),), figures=_hours_figures(inputs)),
    ]
    improved = (shown(_max_throughput(inputs, fleets)), shown(_frontier_improvement(inputs, fleets)))
    return [
        Section(
            title="Fleets",
            text=_iteration_words(fleets),
            sheets=(*improved, _counts(inputs, fleets)),
        ),
        Section(
            title="Iteration frontiers",
            text="Each point is a plan that all pipelines run; a step shows what is attainable within a time.",
            figures=("fleet",),
        ),
        *(section for section in scenarios if section.sheets[0].rows),
    ]


def _hours_figures(inputs: FleetInputs) -> tuple[str, ...]:
    return (HOURS.name,) if has_hours(inputs) else ()


def _iteration_words(fleets: Sequence[FleetComparison]) -> str:
    """Return what an iteration of the fleets is; those of a workload all reduce their gradients alike."""
    if any(fleet.counted == "planned" for fleet in fleets):
        return "Fleets of equal pipelines; plans have what these do together, such as the gradient reduction."
    return (
        "Fleets of equal pipelines; the iteration is that of one pipeline, and what is exposed of the gradient "
        "reduction."
    )


def _without_fleet(sheet: Sheet) -> Sheet:
    """Return a table without its first column, which names the fleet of each row."""
    rows = tuple(replace(row, cells=row.cells[1:]) for row in sheet.rows)
    return replace(sheet, heads=sheet.heads[1:], texts=sheet.texts - 1, rows=rows)


def _counts(inputs: FleetInputs, fleets: Sequence[FleetComparison]) -> Sheet:
    titles = fleet_titles(inputs)
    return sheet_of(
        "Fleets",
        fleets,
        (
            ("fleet", lambda fleet: titles[fleet.fleet]),
            ("name", lambda fleet: fleet.fleet),
            ("pipelines", lambda fleet: f"{fleet.pipelines:,}"),
            ("microbatches of each", lambda fleet: f"{fleet.num_microbatches:,}"),
            (
                "gradient reduction",
                lambda fleet: "in the plans" if fleet.counted == "planned" else scaled(fleet.reduction_s, "s"),
            ),
            ("counted", lambda fleet: fleet.counted),
        ),
        texts=2,
        source="fleet",
    )


def _max_throughput(inputs: FleetInputs, fleets: Sequence[FleetComparison]) -> Sheet:
    titles = fleet_titles(inputs)
    return sheet_of(
        f"Max throughput: the least time of each method; reductions against {THROUGHPUT_BASELINE}",
        [(fleet, row) for fleet in fleets for row in fleet.methods],
        (
            ("fleet", lambda of: titles[of[0].fleet]),
            ("method", lambda of: of[1].method),
            ("time saved", lambda of: percent(of[1].time_reduction_percent)),
            ("energy saved", lambda of: percent(of[1].energy_reduction_percent)),
            ("time", lambda of: scaled(of[1].time_s, "s", digits=4)),
            ("energy", lambda of: scaled(of[1].energy_j, "J")),
        ),
        texts=2,
        source="fleet",
        note=WHICH_PLAN,
        ours=OURS,
    )


def _frontier_improvement(inputs: FleetInputs, fleets: Sequence[FleetComparison]) -> Sheet:
    titles = fleet_titles(inputs)
    baselines = (FRONTIER_BASELINE, THROUGHPUT_BASELINE)
    return sheet_of(
        f"Frontier improvement: reductions against {FRONTIER_BASELINE}",
        [(fleet, row) for fleet in fleets for row in fleet.methods if row.method not in baselines],
        (
            ("fleet", lambda of: titles[of[0].fleet]),
            ("method", lambda of: of[1].method),
            ("iso-time energy saved", lambda of: percent(of[1].iso_time_energy_reduction_percent)),
            ("iso-energy time saved", lambda of: percent(of[1].iso_energy_time_reduction_percent)),
        ),
        texts=2,
        source="fleet",
        note=ISO_NOTE,
        ours=OURS,
    )


def _stragglers(inputs: FleetInputs) -> Sheet:
    titles = fleet_titles(inputs)
    table = list(inputs.stragglers.iter_rows(named=True))
    base = {(r["fleet"], r["slowdown"]): r["waiting_energy_j"] for r in table if r["method"] == THROUGHPUT_BASELINE}
    return sheet_of(
        "Stragglers: one slow pipeline; energy if the others wait, or take the plan that just meets it",
        table,
        (
            ("fleet", lambda row: titles[row["fleet"]]),
            ("method", lambda row: row["method"]),
            ("slowdown", lambda row: f"{row['slowdown']:g}x"),
            ("saved", lambda row: percent(row["saving_percent"])),
            (AGAINST, lambda row: percent(_saved(row["energy_j"], base.get((row["fleet"], row["slowdown"]))))),
            ("time", lambda row: scaled(row["time_s"], "s", digits=4)),
            ("waiting", lambda row: scaled(row["waiting_energy_j"], "J")),
            ("adapting", lambda row: scaled(row["energy_j"], "J")),
        ),
        texts=2,
        source="stragglers",
        note=f"saved: by adapting instead of waiting; {AGAINST}: energy saved against its waiting",
        ours=OURS,
    )


def _power_caps(inputs: FleetInputs) -> Sheet:
    titles = fleet_titles(inputs)
    table = list(inputs.power_caps.iter_rows(named=True))
    base = {(r["fleet"], r["cap_w"]): r["time_s"] for r in table if r["method"] == THROUGHPUT_BASELINE}
    return sheet_of(
        "Power caps: the fastest plan whose mean power, of all GPUs and with waiting, keeps the cap",
        table,
        (
            ("fleet", lambda row: titles[row["fleet"]]),
            ("method", lambda row: row["method"]),
            ("cap, all GPUs", lambda row: scaled(row["cap_w"], "W")),
            (AGAINST, lambda row: percent(_saved(row["time_s"], base.get((row["fleet"], row["cap_w"]))))),
            ("time", lambda row: NONE if row["time_s"] is None else scaled(row["time_s"], "s", digits=4)),
            ("waits", lambda row: DASH if row["waiting_s"] is None else scaled(row["waiting_s"], "s")),
            ("draws", lambda row: DASH if row["power_w"] is None else scaled(row["power_w"], "W")),
            ("cap per GPU", lambda row: scaled(row["cap_w"] / row["gpus"], "W")),
        ),
        texts=2,
        source="power_caps",
        note=f"{AGAINST}: time saved against its plan within the same cap; {NONE}: even waiting GPUs draw more",
        ours=OURS,
    )


def _hours(inputs: FleetInputs) -> Sheet:
    titles = fleet_titles(inputs)
    totals = charges(inputs)
    base = {(row.fleet, row.unit): row.steady for row in totals if row.method == THROUGHPUT_BASELINE}
    return sheet_of(
        "Hours: one plan from the start, or plans by the hour, for the same iterations (money or g CO2)",
        totals,
        (
            ("fleet", lambda row: titles[row.fleet]),
            ("method", lambda row: row.method),
            ("series", lambda row: row.unit),
            ("steady", lambda row: _charge(row.steady)),
            ("by the hour", lambda row: _charge(row.hourly)),
            ("saved", lambda row: percent(row.saving_percent)),
            (AGAINST, lambda row: percent(_saved(row.hourly, base.get((row.fleet, row.unit))))),
        ),
        texts=3,
        source="hours",
        note=f"{AGAINST}: against one plan of {THROUGHPUT_BASELINE} from the start" + _too_slow_note(inputs),
        ours=OURS,
    )


def _charge(value: float | None) -> str:
    """Return money or grams; `none` where a method is too slow for the hours."""
    return NONE if value is None else f"{value:,.{0 if abs(value) >= FEW_MONEY else 2}f}"


def _too_slow_note(inputs: FleetInputs) -> str:
    """Return the most iterations that fit into the hours, where a method is too slow for those asked for."""
    slow = inputs.hours.filter(pl.col("policy") == "none")
    if slow.is_empty():
        return ""
    most = max(slow["iterations"].to_list())
    return f"; {NONE}: too slow, at most {most:,.0f} fit"


def _saved(value: float | None, before: float | None) -> float | None:
    """Return what is saved of `before`, in percent; None where there is nothing to compare."""
    return None if value is None or not before else 100 * (1 - value / before)
