"""Setting aside what is damaged, so that a run makes it again, and removing what killed commands left half written.

What is damaged is never deleted: it may be what a user copied and edited, or a checkpoint, which cannot be made again.
It is kept under another name. Temporary files have names that nobody else gives.
"""

import shutil
from pathlib import Path

from kareus.artifacts.files import is_regular, is_temporary, set_aside
from kareus.artifacts.store import JOURNAL, set_damaged_lines_aside
from kareus.verify.survey import Finding, FindingKind


def repair(finding: Finding) -> str:
    """Set aside or remove what was found; of a journal, the damaged lines alone. Returns what was done."""
    if finding.kind is FindingKind.MISSING:
        return "nothing to remove"
    if finding.kind is FindingKind.LEFT_OVER and is_temporary(finding.path):
        _remove(finding.path)
        return "removed"
    if not is_regular(finding.path):
        return "left where it is: remove it by hand"
    if finding.path.name == JOURNAL:
        return f"kept in {set_damaged_lines_aside(finding.path).name}"
    return f"kept as {set_aside(finding.path).name}"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
