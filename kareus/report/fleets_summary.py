"""The summary of emulated fleets as text, in the form of the paper's emulation tables (section 6.3)."""

from collections.abc import Sequence

from kareus.pipeline.compare import FRONTIER_BASELINE, THROUGHPUT_BASELINE
from kareus.report.fleets import FleetComparison, FleetInputs, charges, compare_fleets
from kareus.report.text import DASH, percent, table


def fleets_text(inputs: FleetInputs) -> str:
    """The summary for a terminal of 100 columns: plain text, aligned, ending in a line feed."""
    fleets = compare_fleets(inputs)
    blocks = [
        [f"{inputs.workload}: emulated fleets", inputs.testbed.label, inputs.testbed.detail],
        _counts(fleets),
        [f"Max throughput: the fastest plan of each method; reductions against {THROUGHPUT_BASELINE}"],
        _max_throughput(fleets),
        [f"Frontier improvement: reductions against {FRONTIER_BASELINE}"],
        _frontier_improvement(fleets),
        *_stragglers(inputs),
        *_power_caps(inputs),
        *_hours(inputs),
        [f"{DASH} no plan of the method satisfies the constraint"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _counts(fleets: Sequence[FleetComparison]) -> list[str]:
    cells = [
        (
            own.fleet,
            f"{own.gpus:,}",
            str(own.pipelines),
            str(own.num_microbatches),
            f"{own.reduction_s:.3f}",
            "exposed" if own.exposed_s else "hidden",
        )
        for own in fleets
    ]
    return table(("fleet", "GPUs", "pipelines", "microbatches of each", "gradient reduction s", "counted"), cells)


def _max_throughput(fleets: Sequence[FleetComparison]) -> list[str]:
    cells = [
        (
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
    return table(
        ("fleet", "microbatches", "method", "time s", "energy MJ", "time saved", "energy saved"), cells, texts=3
    )


def _frontier_improvement(fleets: Sequence[FleetComparison]) -> list[str]:
    cells = [
        (
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
    heads = ("fleet", "microbatches", "method", "iso-time energy saved", "iso-energy time saved")
    return table(heads, cells, texts=3)


def _stragglers(inputs: FleetInputs) -> list[list[str]]:
    cells = [
        (
            row["fleet"],
            row["method"],
            f"{row['slowdown']:g}x",
            f"{row['time_s']:.3f}",
            f"{row['energy_j'] / 1e6:.3f}",
            percent(row["saving_percent"]),
        )
        for row in inputs.stragglers.iter_rows(named=True)
    ]
    title = "Stragglers: one slow pipeline; what the others save by the plan that just meets it"
    heads = ("fleet", "method", "slowdown", "time s", "energy MJ", "energy saved")
    return [[title], table(heads, cells, texts=2)] if cells else []


def _power_caps(inputs: FleetInputs) -> list[list[str]]:
    cells = [
        (
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
    title = "Power caps: the fastest plan within a mean power of all GPUs"
    return [[title], table(("fleet", "method", "cap MW", "power MW", "time s"), cells, texts=2)] if cells else []


def _hours(inputs: FleetInputs) -> list[list[str]]:
    cells = [
        (row.fleet, row.method, row.unit, f"{row.steady:,.0f}", f"{row.hourly:,.0f}", percent(row.saving_percent))
        for row in charges(inputs)
    ]
    title = "Hours: one plan from the start, and plans by the hour, for the same iterations (money, or grams of CO2)"
    return (
        [[title], table(("fleet", "method", "series", "steady", "by the hour", "saved"), cells, texts=3)]
        if cells
        else []
    )
