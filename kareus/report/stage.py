"""The command `report`: the summary and the page of one workload, from its tables and plans."""

import argparse
from pathlib import Path

from kareus.artifacts.files import write_text
from kareus.report.inputs import Paths, load
from kareus.report.page import page_html
from kareus.report.summary import summary_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus report`."""
    parser.add_argument("--workload", required=True, metavar="NAME", help="readable name of the workload")
    parser.add_argument("--iteration", type=Path, required=True, metavar="FILE", help="table of iteration frontiers")
    parser.add_argument("--microbatch", type=Path, required=True, metavar="FILE", help="table of microbatch frontiers")
    for name in ("candidates", "rounds", "proposals"):
        text = "one per partition: .../PARTITION/NAME; none if nothing was searched"
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[], metavar="FILE", help=text)
    parser.add_argument("--plans", type=Path, required=True, nargs="+", metavar="FILE", help="chosen plans")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], metavar="FILE", help="iterations that were run")
    parser.add_argument("--page", type=Path, required=True, metavar="OUT.html", help="page to write")
    parser.add_argument("--summary", type=Path, required=True, metavar="OUT.txt", help="summary to write")


def run(arguments: argparse.Namespace) -> None:
    """Read all inputs, write the page and the summary, print the summary."""
    inputs = load(
        arguments.workload,
        Paths(
            iteration=arguments.iteration,
            microbatch=arguments.microbatch,
            candidates=arguments.candidates,
            rounds=arguments.rounds,
            proposals=arguments.proposals,
            plans=arguments.plans,
            runs=arguments.runs,
        ),
    )
    text = summary_text(inputs)
    write_text(arguments.page, page_html(inputs))
    write_text(arguments.summary, text)
    print(text, end="")  # noqa: T201, the answer of the command
