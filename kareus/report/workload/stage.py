"""The command `report`: the summary and the page of one workload, its figures for papers and its tables for others."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from kareus.artifacts.names import check_title
from kareus.artifacts.outputs import add_force, check_report_folder
from kareus.errors import printable_lines
from kareus.plans.run_totals import check_tokens
from kareus.report.page import write_page
from kareus.report.workload.inputs import Paths, load
from kareus.report.workload.page import TOKENS, workload_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus stage report`."""
    parser.add_argument("--title", required=True, help="readable name of the workload")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration slice of `plan`")
    parser.add_argument("--iteration", type=Path, required=True, metavar="FILE", help="table of iteration frontiers")
    parser.add_argument("--microbatch", type=Path, required=True, metavar="FILE", help="table of microbatch frontiers")
    for name in ("candidates", "rounds", "proposals"):
        text = "one per partition: .../PARTITION/NAME; none if nothing was searched"
        parser.add_argument(f"--{name}", type=Path, nargs="*", default=[], metavar="FILE", help=text)
    parser.add_argument("--plans", type=Path, required=True, nargs="+", metavar="FILE", help="chosen plans")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], metavar="FILE", help="iterations that were run")
    text = "training run whose savings the page works out at first (default: 1e12)"
    parser.add_argument("--tokens", type=float, default=TOKENS, help=text)
    text = "folder for page.html, summary.txt, plans/, figures/ and timelines/ (SVG, PDF, PNG) and data/ (CSV, Parquet)"
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help=text)
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read all inputs, write the report, print the summary."""
    check_title(arguments.title, "--title")
    check_tokens(arguments.tokens)
    check_report_folder(arguments.output, force=arguments.force)
    paths = Paths(
        config=arguments.config,
        iteration=arguments.iteration,
        microbatch=arguments.microbatch,
        candidates=arguments.candidates,
        rounds=arguments.rounds,
        proposals=arguments.proposals,
        plans=arguments.plans,
        runs=arguments.runs,
    )
    text = write_report(arguments.title, paths, arguments.output, arguments.tokens)
    print(printable_lines(text), end="")  # noqa: T201, the answer of the command


def write_report(title: str, paths: Paths, output: Path, tokens: float = TOKENS) -> str:
    """Write the report of a workload into the folder `output`, and return its summary.

    Raises:
        ArtifactError: an input is missing, damaged or of another workload.
    """
    page = workload_page(load(title, paths), tokens)
    write_page(output, page, beside=lambda folder: _copy_plans(paths.plans, folder / "plans"))
    return page.summary


def _copy_plans(plans: Sequence[Path], folder: Path) -> None:
    """Copy the plans that the page links to, so that the folder of the report is complete by itself."""
    folder.mkdir(parents=True, exist_ok=True)
    for plan in plans:
        shutil.copyfile(plan, folder / plan.name)
