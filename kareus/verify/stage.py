"""Command `verify`: recheck everything in a folder; with `--repair`, remove what a run is to make again.

Exit code 0: all is sound. 1: something is not. 2: the folder cannot be checked.
"""

import argparse
import contextlib
import logging
from collections import Counter
from pathlib import Path

from kareus.artifacts.files import lock_at_once
from kareus.errors import ArtifactError
from kareus.verify.known import Known
from kareus.verify.repair import repair
from kareus.verify.survey import Kind, survey

RUN_LOCK = Path(".snakemake/kareus.lock")
"""Lock that a run of the workflow holds, below the folder that it runs in."""

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder."""
    text = "folder of results, or of a training (default: results)"
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"), help=text)
    text = "remove what is damaged and what killed commands left, so that the next run makes it again"
    parser.add_argument("--repair", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each finding, then how many there are; returns 1 if there are any.

    Raises:
        ArtifactError: there is no such folder, or a run is at work in it.
    """
    folder = arguments.folder
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: no such folder; give one with results, or of a training.")
    lock = next((above / RUN_LOCK for above in folder.resolve().parents if (above / RUN_LOCK).exists()), None)
    with lock_at_once(lock) if lock else contextlib.nullcontext():
        findings = survey([folder], Known())
        for finding in findings:
            done = f"; {repair(finding)}" if arguments.repair else ""
            logger.info("%s: %s: %s%s", finding.path, finding.kind, finding.reason, done)
    counts = Counter(finding.kind for finding in findings)
    found = ", ".join(f"{counts[kind]} {kind}" for kind in Kind)
    advice = "" if arguments.repair or not findings else "; remove what is damaged with --repair"
    logger.info("%s: %s", folder, f"{found}{advice}; a run of snakemake makes it again" if findings else "all is sound")
    return 1 if findings else 0
