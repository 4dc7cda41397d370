"""The page of a workload: its sections."""

from collections.abc import Sequence

from kareus.artifacts.records import to_plain
from kareus.pipeline.compare import OURS
from kareus.report.sections import TIMELINES, Figure, Page, Section, Tables
from kareus.report.sheets import Sheet, SheetRow, heads
from kareus.report.workload.inputs import ReportInputs
from kareus.report.workload.summary import (
    NO_PLAN,
    efforts_sheet,
    method_sheets,
    notes,
    overlap_note,
    plans_sheet,
    runs_sheet,
)

PLAYED_BACK = (
    "The fastest plan of each method, played back on the simulated testbed: whole instructions, with noise, on chips "
    "that stay warm. Predictions are put together from partitions that were measured one by one, each on a chip that "
    "had cooled down."
)
RUN = "The fastest plan of each method, run by the engine, beside what was predicted."


def workload_page(inputs: ReportInputs, figures: Sequence[Figure], tables: Tables) -> Page:
    """The page with these figures and tables to download."""
    return Page(
        title=inputs.workload,
        scale=f"{inputs.gpus} GPUs",
        testbeds=(inputs.testbed,),
        provenance=inputs.provenance,
        tiles=_tiles(inputs),
        sections=tuple(_sections(inputs)),
        figures=tuple(figures),
        tables=tables,
        facts={"blocking_power_w": inputs.blocking_power_w, "chosen": len(inputs.plans)},
    )


def _tiles(inputs: ReportInputs) -> tuple[tuple[float | None, str], ...]:
    ours = next((found for found in inputs.savings if found.compared.method == OURS), None)
    if ours is None:
        return ()
    of, errors = ours.compared, ours.errors
    return (
        (of.time_reduction_percent, f"time at max throughput{_within(errors.time_reduction)}, against sequential"),
        (
            of.energy_reduction_percent,
            f"energy at max throughput{_within(errors.energy_reduction)}, against sequential",
        ),
        (
            of.iso_time_energy_reduction_percent,
            f"energy in the same time as sequential+perseus{_within(errors.iso_time_energy_reduction)}",
        ),
        (
            of.iso_energy_time_reduction_percent,
            f"time for the same energy as sequential+perseus{_within(errors.iso_energy_time_reduction)}",
        ),
    )


def _within(error: float | None) -> str:
    return f" (\u00b1{error:.1f} points)" if error else ""


def _sections(inputs: ReportInputs) -> list[Section]:
    runs = Section(
        title="End to end",
        text=PLAYED_BACK if inputs.testbed.kind == "simulated" else RUN,
        sheets=(runs_sheet(inputs.runs, inputs.testbed),) if inputs.runs else (),
    )
    efforts = efforts_sheet(inputs.searches)
    return [
        Section(
            title="Summary",
            text=" ".join([*overlap_note(inputs), "; ".join([NO_PLAN, *notes(inputs)])]),
            sheets=(*method_sheets(inputs.savings), plans_sheet(inputs)),
        ),
        Section(
            title="Iteration frontiers",
            text="Each point is a plan that can be run; a step shows what is attainable within a time. Numbers mark "
            "the chosen plans.",
            figures=("iteration",),
        ),
        Section(
            title="Pipeline timeline",
            text="When every instruction of a plan runs, and what it draws. Hatched: the stage waits. Point at an "
            "instruction, or reach the figure with the Tab key and an instruction with the arrow keys.",
            figures=(TIMELINES, "power"),
        ),
        *([runs] if runs.sheets else []),
        Section(
            title="Search",
            text="Candidates that were measured for every partition. Prediction and measurement appear where a point "
            "is pointed at.",
            sheets=(efforts,) if efforts.rows else (),
            figures=("search", "passes"),
        ),
        Section(
            title="Microbatch frontiers",
            text=f"What one instruction can cost. The vertical axis leaves out blocking power "
            f"({inputs.blocking_power_w:.0f} W), which is paid in any case while the iteration lasts; stages that cost "
            "the same share a panel.",
            figures=("microbatch",),
        ),
        Section(title="Provenance", sheets=(_sources(inputs),), is_folded=True),
    ]


def _sources(inputs: ReportInputs) -> Sheet:
    names = ("config_hash", "kareus_version", "created_at")
    rows = [(source.name, to_plain(source.provenance)) for source in inputs.sources]
    return Sheet(
        caption="Inputs of this report",
        heads=heads([("", ("table", "configuration", "kareus", "created (UTC)"))]),
        rows=tuple(SheetRow(cells=(name, *(provenance[key] for key in names))) for name, provenance in rows),
        texts=4,
    )
