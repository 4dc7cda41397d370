"""The tables of emulated fleets in the form of the paper's (section 6.3), the sections of their page, the text."""

from collections.abc import Sequence

from kareus.pipeline.compare import FRONTIER_BASELINE, OURS, THROUGHPUT_BASELINE
from kareus.report.fleet.inputs import FleetComparison, FleetInputs, charges, compare_fleets
from kareus.report.sections import Section
from kareus.report.sheets import DASH, Sheet, SheetRow, heads, percent, sheet_text


def fleets_text(inputs: FleetInputs, sections: Sequence[Section]) -> str:
    """The summary for a terminal of 100 columns: plain text, aligned, ending in a line feed."""
    sheets = [sheet for section in sections for sheet in section.sheets]
    blocks = [
        [f"{inputs.workload}: emulated fleets", inputs.testbed.label, inputs.testbed.detail],
        *(block for sheet in sheets for block in sheet_text(sheet)),
        [f"{DASH} no plan of the method satisfies the constraint"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def fleet_sections(inputs: FleetInputs) -> list[Section]:
    """Sections of the page; scenarios that were not asked for are left out."""
    fleets = compare_fleets(inputs)
    scenarios = [
        Section(title="Stragglers", sheets=(_stragglers(inputs),)),
        Section(title="Power caps", sheets=(_power_caps(inputs),)),
        Section(title="Hours of a series", sheets=(_hours(inputs),), figures=("hours",)),
    ]
    return [
        Section(
            title="Strong scaling",
            text="Fleets of equal pipelines; the iteration is that of one pipeline, and what is exposed of the "
            "gradient reduction.",
            sheets=(_counts(fleets), _max_throughput(fleets), _frontier_improvement(fleets)),
        ),
        Section(
            title="Iteration frontiers",
            text="Each point is a plan that all pipelines run; a step shows what is attainable within a time.",
            figures=("fleet",),
        ),
        *(section for section in scenarios if section.sheets[0].rows),
    ]


def _counts(fleets: Sequence[FleetComparison]) -> Sheet:
    rows = [
        SheetRow(
            cells=(
                own.fleet,
                f"{own.gpus:,}",
                str(own.pipelines),
                str(own.num_microbatches),
                f"{own.reduction_s:.3f}",
                "exposed" if own.exposed_s else "hidden",
            )
        )
        for own in fleets
    ]
    names = ("fleet", "GPUs", "pipelines", "microbatches of each", "gradient reduction s", "counted")
    return Sheet(caption="Fleets", heads=heads([("", names)]), rows=tuple(rows), source="fleet")


def _max_throughput(fleets: Sequence[FleetComparison]) -> Sheet:
    rows = [
        _row(
            own.fleet,
            str(own.num_microbatches),
            row.method,
            f"{row.time_s:.3f}",
            f"{row.energy_j / 1e6:.3f}",
            percent(row.time_reduction_percent),
            percent(row.energy_reduction_percent),
        )
        for own in fleets
        for row in own.methods
    ]
    return Sheet(
        caption=f"Max throughput: the fastest plan of each method; reductions against {THROUGHPUT_BASELINE}",
        heads=heads([("", ("fleet", "microbatches", "method", "time s", "energy MJ", "time saved", "energy saved"))]),
        rows=tuple(rows),
        texts=3,
        source="fleet",
    )


def _frontier_improvement(fleets: Sequence[FleetComparison]) -> Sheet:
    rows = [
        _row(
            own.fleet,
            str(own.num_microbatches),
            row.method,
            percent(row.iso_time_energy_reduction_percent),
            percent(row.iso_energy_time_reduction_percent),
        )
        for own in fleets
        for row in own.methods
        if row.method not in (FRONTIER_BASELINE, THROUGHPUT_BASELINE)
    ]
    names = ("fleet", "microbatches", "method", "iso-time energy saved", "iso-energy time saved")
    return Sheet(
        caption=f"Frontier improvement: reductions against {FRONTIER_BASELINE}",
        heads=heads([("", names)]),
        rows=tuple(rows),
        texts=3,
        source="fleet",
    )


def _stragglers(inputs: FleetInputs) -> Sheet:
    rows = [
        _row(
            row["fleet"],
            row["method"],
            f"{row['slowdown']:g}x",
            f"{row['time_s']:.3f}",
            f"{row['waiting_energy_j'] / 1e6:.3f}",
            f"{row['energy_j'] / 1e6:.3f}",
            percent(row["saving_percent"]),
        )
        for row in inputs.stragglers.iter_rows(named=True)
    ]
    return Sheet(
        caption="Stragglers: one slow pipeline; what the others save by the plan that just meets it",
        heads=heads([("", ("fleet", "method", "slowdown", "time s", "waiting MJ", "adapting MJ", "energy saved"))]),
        rows=tuple(rows),
        texts=2,
        source="stragglers",
    )


def _power_caps(inputs: FleetInputs) -> Sheet:
    rows = [
        _row(
            row["fleet"],
            row["method"],
            f"{row['cap_w'] / 1e6:.3f}",
            *(
                DASH if row[name] is None else f"{row[name] / unit:.3f}"
                for name, unit in (("power_w", 1e6), ("time_s", 1))
            ),
        )
        for row in inputs.power_caps.iter_rows(named=True)
    ]
    return Sheet(
        caption="Power caps: the fastest plan within a mean power of all GPUs",
        heads=heads([("", ("fleet", "method", "cap MW", "power MW", "time s"))]),
        rows=tuple(rows),
        texts=2,
        source="power_caps",
    )


def _hours(inputs: FleetInputs) -> Sheet:
    rows = [
        _row(row.fleet, row.method, row.unit, f"{row.steady:,.0f}", f"{row.hourly:,.0f}", percent(row.saving_percent))
        for row in charges(inputs)
    ]
    return Sheet(
        caption="Hours: one plan from the start, and plans by the hour, for the same iterations "
        "(money, or grams of CO2)",
        heads=heads([("", ("fleet", "method", "series", "steady", "by the hour", "saved"))]),
        rows=tuple(rows),
        texts=3,
        source="hours",
    )


def _row(*cells: str) -> SheetRow:
    return SheetRow(cells=cells, is_ours=OURS in cells)
