"""The command `report-fleets`: the summary and the page of a workload's emulated fleets."""

import argparse
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.names import check_title
from kareus.artifacts.outputs import add_force, check_report_folder
from kareus.errors import printable_lines
from kareus.report.fleet_inputs import load_fleets, with_clocks
from kareus.report.fleet_page import fleets_page
from kareus.report.page import write_page
from kareus.report.workload.headline import trust_words
from kareus.workload.slices import PlanSlice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus stage report-fleets`."""
    parser.add_argument("--title", required=True, help="readable name of the workload")
    for name in ("fleet", "stragglers", "power-caps", "hours"):
        parser.add_argument(
            f"--{name}", type=Path, required=True, nargs="+", metavar="FILE", help="one table for each fleet"
        )
    text = "table of microbatch frontiers; without it the page has no clocks of stages"
    parser.add_argument("--microbatch", type=Path, metavar="FILE", help=text)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration of the workload")
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
    workload = load_slice(arguments.config, PlanSlice).workload
    if arguments.microbatch is not None:
        inputs = with_clocks(inputs, arguments.microbatch, workload.pipeline)
    page = fleets_page(inputs, trust_words(workload, inputs.testbed.kind))
    write_page(arguments.output, page, "fleets.html", summary="fleets.txt", manifest="fleets.manifest.json")
    print(printable_lines(page.summary), end="")  # noqa: T201, the answer of the command
