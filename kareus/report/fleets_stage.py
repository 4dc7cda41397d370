"""The command `report-fleets`: the summary and the page of a workload's emulated fleets."""

import argparse
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.report.fleets import fleets_data, load_fleets
from kareus.report.fleets_summary import fleets_text
from kareus.report.page import FLEET_SCRIPTS, html_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus report-fleets`."""
    parser.add_argument("--workload", required=True, metavar="NAME", help="readable name of the workload")
    for name in ("fleet", "stragglers", "power-caps", "hours"):
        parser.add_argument(
            f"--{name}", type=Path, required=True, nargs="+", metavar="FILE", help="one table for each fleet"
        )
    parser.add_argument("--page", type=Path, required=True, metavar="OUT.html", help="page to write")
    parser.add_argument("--summary", type=Path, required=True, metavar="OUT.txt", help="summary to write")


def run(arguments: argparse.Namespace) -> None:
    """Read all tables, write the page and the summary, print the summary."""
    inputs = load_fleets(
        arguments.workload, arguments.fleet, arguments.stragglers, arguments.power_caps, arguments.hours
    )
    text = fleets_text(inputs)
    title = f"{inputs.workload}, emulated fleets ({inputs.testbed.label})"
    write_text(arguments.page, html_page(title, text, fleets_data(inputs), FLEET_SCRIPTS))
    write_text(arguments.summary, text)
    print(text, end="")  # noqa: T201, the answer of the command
