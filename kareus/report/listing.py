"""Command `results`: print the summaries of what was planned, and where everything is."""

import argparse
import logging
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.artifacts.tables import read_table
from kareus.workload.tables import WORKLOADS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder."""
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Print one summary for each workload, planned or refused, and for its fleets, and where they and campaigns are."""
    workloads, fleets = arguments.results / "workloads.parquet", sorted(arguments.results.glob("*/report/fleets.txt"))
    planned = sorted(arguments.results.glob("*/report/summary.txt"))
    refusals = {path.parents[1].name: None for path in planned}  # of earlier campaigns too
    if workloads.is_file() or not (planned or fleets):
        rows = read_table(workloads, WORKLOADS).select("workload", "refusal").rows()
        refusals = dict(rows) | {name: None for name in refusals if name not in dict(rows)}
    for workload, refusal in refusals.items():
        logger.info("%s\n", _entry(arguments.results / workload, refusal))
    for summary in fleets:
        logger.info("%s\npage     %s\n", read_text(summary).rstrip(), summary.with_suffix(".html").resolve())
    for index in sorted(arguments.results.glob("campaigns/*/report/index.html")):
        logger.info("campaign %s, all of it in one folder\npage     %s\n", index.parents[1].name, index.resolve())


def _entry(folder: Path, refusal: str | None) -> str:
    if refusal:
        return f"{folder.name}: refused: {refusal}"
    summary = folder / "report/summary.txt"
    if not summary.is_file():
        return f"{folder.name}: not planned yet; run snakemake."
    return f"{read_text(summary).rstrip()}\n{_places(folder)}"


def _places(folder: Path) -> str:
    return "\n".join(
        f"{what:<8} {place.resolve()}"
        for what, place in (
            ("page", folder / "report/page.html"),
            ("plans", folder / "plan"),
            ("tables", folder),
        )
    )
