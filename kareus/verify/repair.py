"""Removing what is damaged, so that a run makes it again, and what killed commands left.

Checkpoints cannot be made again, and one that was only renamed can be renamed back; a configuration may be one that a
user copied and edited. Their files are kept under another name.
"""

import shutil

from kareus.artifacts.files import set_aside
from kareus.artifacts.store import JOURNAL, set_damaged_lines_aside
from kareus.training.checkpoint_files import is_checkpoint_file
from kareus.verify.survey import Finding, FindingKind


def repair(finding: Finding) -> str:
    """Remove what was found, or set it aside; of a journal, the damaged lines alone. Returns what was done."""
    if finding.kind is FindingKind.MISSING:
        return "nothing to remove"
    if finding.kind is FindingKind.DAMAGED and not finding.path.is_file():
        return "left where it is: remove it by hand"
    if is_checkpoint_file(finding.path) or finding.path.suffix == ".yaml":
        return f"kept as {set_aside(finding.path).name}"
    if finding.path.name == JOURNAL:
        return f"kept in {set_damaged_lines_aside(finding.path).name}"
    if finding.path.is_dir():
        shutil.rmtree(finding.path)
    else:
        finding.path.unlink(missing_ok=True)
    return "removed"
