"""Command `compare`: two plans, or plans of two layouts, beside each other on the terminal and on a page."""

import argparse
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kareus.artifacts.files import read_text, write_text
from kareus.artifacts.outputs import OutputKind, add_force, check_files
from kareus.artifacts.records import to_plain
from kareus.errors import ArtifactError, printable_lines
from kareus.plans.check_stage import read_checked_plan, workload_folder
from kareus.plans.comparison import WAITS, Comparison, Share, StageShares, compare
from kareus.plans.document import Plan
from kareus.plans.locate import plan_path
from kareus.plans.units import common_scale, compared, less, scaled
from kareus.report.sheets import DASH, Sheet, SheetRow, heads, sheet_text
from kareus.workload.config import Workload

if TYPE_CHECKING:
    from kareus.report.page import Page

logger = logging.getLogger(__name__)

Checked = tuple[Plan, Workload]
LETTERS = ("A", "B")
TITLE = "Two plans beside each other"


def _is_page(path: Path) -> bool:
    try:
        return TITLE in read_text(path)
    except ArtifactError:
        return False


PAGE = OutputKind("a page of `kareus compare`", _is_page)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two plans and the page."""
    for letter in LETTERS:
        text = f"plan {letter}: a plan file in the folder of its workload, or a folder of a workload that has one plan"
        parser.add_argument(letter.lower(), metavar=letter, type=Path, help=text)
    text = "folder of the workload of plans that lie elsewhere (default: the one that a plan is in)"
    parser.add_argument("--folder", type=Path, help=text)
    text = "also write the page (HTML): both pipelines on one axis of time, with clocks and power"
    parser.add_argument("--output", type=Path, metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print what differs as JSON, in seconds and joules")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read and check both plans, print where they differ, and write the page where one is asked for."""
    paths = [plan_path(path) for path in (arguments.a, arguments.b)]
    if arguments.output is not None:
        check_files(arguments, [(arguments.output, PAGE)], paths)
    first, second = (read_checked_plan(path, _elsewhere(path, arguments.folder)) for path in paths)
    comparison = compare(first, second)
    if arguments.output is not None:
        from kareus.report.page import page_html  # noqa: PLC0415 - figures take a second to import

        write_text(arguments.output, page_html(_page(comparison, first, second)))
    if arguments.json:
        print(json.dumps(as_json(comparison), indent=2))  # noqa: T201 - the answer of the command
        return
    print(printable_lines("\n".join(lines(comparison, first, second)) + "\n"), end="")  # noqa: T201 - as above
    if arguments.output is not None:
        logger.info("page   %s", arguments.output)


def _elsewhere(path: Path, folder: Path | None) -> Path | None:
    """Return the folder that was given, unless the plan is in one of its own."""
    return None if workload_folder(path, None).has("config/plan.yaml") else folder


def lines(comparison: Comparison, first: Checked, second: Checked) -> list[str]:
    """Return what differs, and how wrong it may be, for a terminal."""
    blocks = [block for sheet in sheets(comparison) for block in ([], *sheet_text(sheet))]
    labels = (f"{name} [{plan.testbed.label}]" for name, plan in zip(names(comparison), comparison.plans, strict=True))
    answer = [headline(comparison), *trusts(first, second)]
    return [*labels, *answer, *(line for block in blocks for line in (block or [""]))]


def names(comparison: Comparison) -> list[str]:
    """Return what A and B are, a line each."""
    return [
        f"{letter}: {plan.workload}: plan {plan.selector} of {plan.method}{_set(plan)}"
        for letter, plan in zip(LETTERS, comparison.plans, strict=True)
    ]


def trusts(first: Checked, second: Checked) -> list[str]:
    """Return how wrong times and energies of both plans may be: a line, or one for each where they differ."""
    from kareus.report.workload.headline import trust_words  # noqa: PLC0415 - bad plans need not wait for numpy

    said = [trust_words(workload, plan.testbed.kind) for plan, workload in (first, second)]
    if said[0] == said[1]:
        return said[:1]
    return [f"{letter}: {line}" for letter, line in zip(LETTERS, said, strict=True)]


def headline(comparison: Comparison) -> str:
    """Return how the second plan compares with the first, in one line."""
    before, after = (plan.prediction for plan in comparison.plans)
    time = less(100 * (1 - after.time_s / before.time_s), "time")
    energy = less(100 * (1 - after.energy_j / before.energy_j), "energy")
    costs = [
        f"{scaled(cost.time_s, 's', digits=4)} and {scaled(cost.energy_j, 'J', digits=4)}" for cost in (after, before)
    ]
    plans = [f"{plan.selector} of {plan.method}" for plan in comparison.plans]
    named = [f" ({plan})" if plans[0] != plans[1] else "" for plan in plans]
    return f"B{named[1]} takes {compared(time, energy, f'A{named[0]}')}: {costs[0]} an iteration instead of {costs[1]}"


def sheets(comparison: Comparison) -> list[Sheet]:
    """Return the tables of what differs: by parts of an iteration, by what is changed about instructions, by stage."""
    changed = [_changed(comparison)] if comparison.changed is not None else []
    return [_parts(comparison), *changed, _stages(comparison)]


def _parts(comparison: Comparison) -> Sheet:
    total = [Share(plan.prediction.time_s, plan.prediction.energy_j) for plan in comparison.plans]
    shares = {part: [comparison.share(number, part) for number in (0, 1)] for part in comparison.parts}
    shares["iteration"] = total
    columns = []
    for measure, unit in (("time_s", "s"), ("energy_j", "J")):
        factor, shown = common_scale([getattr(share, measure) for share in total], unit)
        values = [[getattr(share, measure) / factor for share in pair] for pair in shares.values()]
        columns.append((shown, [(f"{a:.3f}", f"{b:.3f}", _more(b - a)) for a, b in values]))
    (time_unit, times), (energy_unit, energies) = columns
    stages = [str(stage.stage) for stage in comparison.busiest]
    where = stages[0] if stages[0] == stages[1] else f"{stages[0]} of A, {stages[1]} of B"
    return Sheet(
        caption="Where the difference comes from",
        heads=heads(
            [
                ("", ("part",)),
                (f"time ({time_unit})", (*LETTERS, "B - A")),
                (f"energy ({energy_unit})", (*LETTERS, "B - A")),
            ]
        ),
        rows=tuple(SheetRow(cells=(part, *times[n], *energies[n])) for n, part in enumerate(shares)),
        note=f"Times are of the stage that works longest (stage {where}), energies of all GPUs.",
    )


def _more(difference: float) -> str:
    return f"{difference:+z.3f}"


def _changed(comparison: Comparison) -> Sheet:
    assert comparison.changed is not None
    factor, unit = common_scale([plan.prediction.energy_j for plan in comparison.plans], "J")
    waits_j = sum(comparison.difference(part).energy_j for part in comparison.parts if part in WAITS)
    rows = [(name, str(changed.count), changed.energy_j) for name, changed in comparison.changed.items()]
    return Sheet(
        caption="How B runs the instructions of A",
        heads=(("", "run"), ("", "instructions"), ("", f"energy B - A ({unit})")),
        rows=tuple(
            SheetRow(cells=(name, count, _more(energy_j / factor)))
            for name, count, energy_j in (*rows, ("waiting", DASH, waits_j))
        ),
        note="Another way is another execution, SM count or launch.",
    )


def _stages(comparison: Comparison) -> Sheet:
    factor, unit = common_scale([s.energy_j for stages in comparison.stages for s in stages], "J")
    count = max(map(len, comparison.stages))
    return Sheet(
        caption="Stage by stage",
        heads=heads(
            [("", ("stage",))]
            + [(name, LETTERS) for name in ("clocks (MHz)", "changes", "works (s)", "waits (s)", f"energy ({unit})")]
        ),
        rows=tuple(
            SheetRow(
                cells=(
                    str(number),
                    *_interleaved(
                        [
                            _cells(stages, number, factor, locks=plan.actuator.sets_clocks)
                            for plan, stages in zip(comparison.plans, comparison.stages, strict=True)
                        ]
                    ),
                )
            )
            for number in range(count)
        ),
        note="Clocks: least, mean over the time of instructions, largest; to: chosen by the driver. Changes are of "
        "an iteration.",
    )


def _set(plan: Plan) -> str:
    """Return what a plan sets instead of clocks, in words that follow its name; empty for clocks."""
    return "" if plan.actuator.sets_clocks else f" under {plan.actuator}"


def _cells(stages: tuple[StageShares, ...], number: int, factor: float, *, locks: bool) -> tuple[str, ...]:
    if number >= len(stages):
        return (DASH,) * 5
    stage = stages[number]
    least, mean, most = stage.clocks_mhz
    clocks = f"to {most}" if not locks else str(least) if least == most else f"{least}/{mean:.0f}/{most}"
    numbers = (f"{stage.working_s:.3f}", f"{stage.waiting_s:.3f}", f"{stage.energy_j / factor:.3f}")
    return (clocks, str(stage.clock_changes), *numbers)


def _interleaved(cells: list[tuple[str, ...]]) -> Iterator[str]:
    for pair in zip(*cells, strict=True):
        yield from pair


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the differences as plain values."""
    return {
        letter: {
            "workload": plan.workload,
            "selector": plan.selector,
            "actuator": str(plan.actuator),
            "method": plan.method,
            "testbed": plan.testbed.label,
            "time_s": plan.prediction.time_s,
            "energy_j": plan.prediction.energy_j,
            "busiest_stage": busiest.stage,
            "stages": to_plain(stages),
        }
        for letter, plan, busiest, stages in zip(
            LETTERS, comparison.plans, comparison.busiest, comparison.stages, strict=True
        )
    } | {
        "B - A": {part: to_plain(comparison.difference(part)) for part in comparison.parts},
        "changed": to_plain(comparison.changed),
    }


def _page(comparison: Comparison, first: Checked, second: Checked) -> "Page":
    from kareus.artifacts.provenance import Provenance  # noqa: PLC0415 - as in `run`
    from kareus.report.page import Page, Section  # noqa: PLC0415
    from kareus.report.workload.timeline import Drawn, clocks_of, paired_figure, plan_words  # noqa: PLC0415

    drawn = [
        Drawn(letter, letter, plan, workload.gpu)
        for letter, (plan, workload) in zip(LETTERS, (first, second), strict=True)
    ]
    figure = paired_figure(
        "pipelines",
        "Pipelines of both plans, coloured by clock",
        (drawn[0], drawn[1]),
        (f"A: {plan_words(drawn[0].plan)}", f"B: {plan_words(drawn[1].plan)}"),
        clocks_of(comparison.plans),
        has_files=False,
    )
    testbeds = tuple(dict.fromkeys(plan.testbed for plan in comparison.plans))
    return Page(
        title=TITLE,
        name=" and ".join(dict.fromkeys(plan.workload for plan in comparison.plans)),
        testbeds=testbeds,
        provenance=Provenance(
            config_hash=" and ".join(p.workload_hash for p in comparison.plans), testbed=testbeds[0]
        ).stamped(),
        sections=(
            Section(title="On one axis of time", figures=(figure.name,)),
            Section(title="In figures", sheets=tuple(sheets(comparison))),
        ),
        figures=(figure,),
        tables=(),
        summary="\n".join(lines(comparison, first, second)),
        template="headline.html",
        extra={
            "headline": f"{headline(comparison)}.",
            "lead": [*(f"{name}." for name in names(comparison)), *trusts(first, second)],
        },
    )
