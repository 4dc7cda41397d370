"""The command `report-fleets`: the summary and the page of a workload's emulated fleets."""

import argparse
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.artifacts.manifest import write_manifest
from kareus.artifacts.names import check_title
from kareus.artifacts.outputs import add_force, check_report_folder
from kareus.errors import printable_lines
from kareus.pipeline.config import PipelineSchedule
from kareus.report.contents import FLEET_TABLES, report_contents
from kareus.report.downloads import OF_WORKLOAD, labelled, labelled_schema, write_downloads
from kareus.report.drawing import save
from kareus.report.fleet.figures import fleet_figures
from kareus.report.fleet.inputs import compare_fleets, fleet_data, load_fleets, with_clocks
from kareus.report.fleet.summary import fleet_sections, fleets_text, headline, page_title
from kareus.report.page import page_html
from kareus.report.sections import Page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus stage report-fleets`."""
    parser.add_argument("--title", required=True, help="readable name of the workload")
    for name in ("fleet", "stragglers", "power-caps", "hours"):
        parser.add_argument(
            f"--{name}", type=Path, required=True, nargs="+", metavar="FILE", help="one table for each fleet"
        )
    text = "table of microbatch frontiers; without it the page has no clocks of stages"
    parser.add_argument("--microbatch", type=Path, metavar="FILE", help=text)
    text = "order of the pipelines' instructions (default: 1f1b)"
    parser.add_argument("--schedule", choices=list(PipelineSchedule), default=PipelineSchedule("1f1b"), help=text)
    parser.add_argument("--chunks", type=int, default=1, help="parts of every stage's layers (default: 1)")
    text = "folder for fleets.html, fleets.txt, figures/ (SVG, PDF, PNG) and data/ (CSV, Parquet)"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read all tables, write the report, print the summary."""
    check_title(arguments.title, "--title")
    check_report_folder(arguments.output, force=arguments.force)
    inputs = load_fleets(
        arguments.title,
        arguments.fleet,
        arguments.stragglers,
        arguments.power_caps,
        arguments.hours,
    )
    if arguments.microbatch is not None:
        inputs = with_clocks(inputs, arguments.microbatch, PipelineSchedule(arguments.schedule), arguments.chunks)
    figures, subject, output = fleet_figures(inputs), f"{inputs.workload}, {inputs.testbed.label}", arguments.output
    of = {"workload": inputs.workload, "testbed": inputs.testbed.label}
    for schema, frame in inputs.tables():
        write_downloads(output / "data", labelled(frame, of), labelled_schema(schema, OF_WORKLOAD), inputs.provenance)
    for figure in figures:
        save(figure, subject, output)
    sections = fleet_sections(inputs)
    text = fleets_text(inputs, sections)
    page = Page(
        title=page_title(inputs),
        name=inputs.workload,
        testbeds=(inputs.testbed,),
        provenance=inputs.provenance,
        sections=tuple(sections),
        figures=tuple(figures),
        tables=inputs.tables(),
        summary=text,
        template="fleets.html",
        extra={"headline": headline(inputs, compare_fleets(inputs))},
        data={"fleets": fleet_data(inputs)},
    )
    write_text(output / "fleets.html", page_html(page))
    write_text(output / "fleets.txt", text)
    contents = report_contents(("fleets.html", "fleets.txt"), ("fleet",), FLEET_TABLES)
    write_manifest(output / "fleets.manifest.json", [output / file for file in contents])
    print(printable_lines(text), end="")  # noqa: T201, the answer of the command
