"""Command `doctor`: say what this machine can do for Kareus, with a remedy for whatever is not as it could be."""

import argparse
import json
from collections.abc import Sequence

import kareus
from kareus.device import stage as clocks
from kareus.doctor.diagnoses import EXIT_CODES, Diagnosis, State, worst
from kareus.doctor.gpus import gpu_findings
from kareus.doctor.software import slurm_finding, torch_answer, torch_findings, version_findings
from kareus.errors import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the form of the answer."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Look at everything, print it, and return the exit code of the worst finding; nothing is changed."""
    findings = [
        *gpu_findings(clocks.open_devices),
        *version_findings(),
        *torch_findings(torch_answer()),
        slurm_finding(),
    ]
    if arguments.json:
        print(json.dumps(plain(findings)))  # noqa: T201 - the answer of the command
    else:
        print("\n".join(map(printable, lines(findings))))  # noqa: T201
    return EXIT_CODES[worst(findings)]


def plain(findings: Sequence[Diagnosis]) -> dict[str, object]:
    """Return all findings as plain data."""
    return {
        "kareus": kareus.__version__,
        "state": worst(findings).word,
        "findings": [
            {"check": one.check, "state": one.state.word, "found": one.found, "remedy": one.remedy} for one in findings
        ],
    }


def lines(findings: Sequence[Diagnosis]) -> list[str]:
    """Return a table of all findings, each remedy below its line, and what it comes to."""
    width = max(len(one.check) for one in findings)
    table = []
    for one in findings:
        table.append(f"{one.state.word:<7}  {one.check:<{width}}  {one.found}")
        if one.remedy and one.state is not State.OK:
            table.append(f"{'':<7}  {'':<{width}}  -> {one.remedy}")
    counts = {state: sum(one.state is state for one in findings) for state in State}
    summary = ", ".join(f"{count} {state.word}" for state, count in counts.items() if count)
    return [f"kareus {kareus.__version__} on this machine", "", *table, "", summary]
