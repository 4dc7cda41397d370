"""Command `verify`: recheck everything in a folder; with `--repair`, set aside what a run is to make again.

Exit code 0: all is sound. 1: something is not, be it repaired or not. 2: the folder cannot be checked.
"""

import argparse
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kareus.artifacts.locks import lock_at_once
from kareus.errors import ArtifactError
from kareus.training.checkpoint_files import is_checkpoint_file
from kareus.verify.outputs import is_planned_alone
from kareus.verify.sound_files import SoundFiles
from kareus.verify.survey import Finding, FindingKind, has_checked, repair, survey

RUN_LOCK = Path(".snakemake/kareus.lock")
"""Lock that a run of the workflow holds, below the folder that it runs in."""
LOCK, CHECKPOINTS = "lock", "checkpoints"
"""Lock that a training holds in its folder, and what else is there."""

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder."""
    text = "folder of results, or of a training (default: results)"
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"), help=text)
    text = "set aside what is damaged, so that the next run makes it again, and remove what killed commands left"
    parser.add_argument("--repair", action="store_true", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each finding, then how many there are; returns 1 if there are any.

    Raises:
        ArtifactError: there is no such folder, nothing in it is of Kareus, or a run is at work in it.
    """
    folder = arguments.folder
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: no such folder; give one with results, or of a training.")
    with contextlib.ExitStack() as locks:
        for lock in _locks(folder):
            locks.enter_context(lock_at_once(lock))
        findings = survey([folder], SoundFiles())
        if not (findings or has_checked(folder)):
            raise ArtifactError(f"{folder}: nothing in it is of Kareus, so nothing was checked; give one with results.")
        for finding in findings:
            done = f"; {_repaired(finding, folder)}" if arguments.repair else ""
            logger.info("%s: %s: %s%s", finding.path, finding.kind, finding.reason, done)
    logger.info("%s: %s", folder, _summary(findings, is_repaired=arguments.repair))
    return 1 if findings else 0


def _repaired(finding: Finding, folder: Path) -> str:
    """Repair what is in the folder that was given; a list in it may name what is beside that folder."""
    is_inside = finding.path.resolve().is_relative_to(folder.resolve())
    return repair(finding) if is_inside else f"left where it is: not in {folder}"


def _locks(folder: Path) -> list[Path]:
    """Locks of the run of the workflow, and of the trainings, that may be at work in a folder."""
    here = folder.resolve()
    runs = [above / RUN_LOCK for above in (here, *here.parents)]
    of_trainings = [above / LOCK for above in (here, *here.parents) if (above / CHECKPOINTS).is_dir()]
    below = [path for path in here.rglob(LOCK) if (path.parent / CHECKPOINTS).is_dir()]
    return [path for path in dict.fromkeys([*runs, *of_trainings, *below]) if path.is_file()]


def _summary(findings: Sequence[Finding], *, is_repaired: bool) -> str:
    """Return the number of problems and the remedy, in words."""
    if not findings:
        return "all is sound"
    counts = Counter(finding.kind for finding in findings)
    parts = [", ".join(f"{counts[kind]} {kind}" for kind in FindingKind)]
    if not is_repaired and counts[FindingKind.DAMAGED] + counts[FindingKind.LEFT_OVER]:
        parts.append("set aside what is damaged, and remove what is left over, with --repair")
    lost = [finding for finding in findings if finding.kind is not FindingKind.LEFT_OVER]
    checkpoints = [finding for finding in lost if is_checkpoint_file(finding.path)]
    alone = [finding for finding in lost if finding not in checkpoints and is_planned_alone(finding.path)]
    if alone:
        parts.append("`kareus plan`, with the words that planned it, makes a folder of plans again")
    if len(checkpoints) + len(alone) < len(lost):
        parts.append("a run of snakemake makes results again")
    if checkpoints:
        parts.append("a training resumes from its last checkpoint that is whole")
    return "; ".join(parts)
