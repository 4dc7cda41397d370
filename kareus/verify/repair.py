"""Removing what is damaged, so that a run makes it again, and what killed commands left.

Checkpoints cannot be made again, and one that was only renamed can be renamed back; a configuration may be one that a
user copied and edited. Their files are kept under another name.
"""

import shutil
from pathlib import Path

from kareus.artifacts.files import set_aside, write_atomically
from kareus.artifacts.store import JOURNAL, damaged_lines
from kareus.engine.checkpoint_files import is_checkpoint_file
from kareus.verify.survey import Finding, Kind


def repair(finding: Finding) -> str:
    """Remove what was found, and of a journal no more than the damaged lines; returns what was done."""
    if finding.kind is Kind.MISSING:
        return "nothing to remove"
    if finding.kind is Kind.DAMAGED and not finding.path.is_file():
        return "left where it is: remove it by hand"
    if is_checkpoint_file(finding.path) or finding.path.suffix == ".yaml":
        return f"kept as {set_aside(finding.path).name}"
    if finding.path.name == JOURNAL:
        return _without_damaged_lines(finding.path)
    if finding.path.is_dir():
        shutil.rmtree(finding.path)
    else:
        finding.path.unlink(missing_ok=True)
    return "removed"


def _without_damaged_lines(path: Path) -> str:
    damaged = set(damaged_lines(path))
    lines = path.read_bytes().splitlines(keepends=True)
    sound = [line for number, line in enumerate(lines, start=1) if number not in damaged]
    write_atomically(path, lambda temporary: temporary.write_bytes(b"".join(sound)))
    return f"{len(damaged)} of {len(lines)} lines removed"
