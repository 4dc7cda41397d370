"""Surveying folders: every file in them that is damaged, missing or left over, and setting it aside."""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kareus.artifacts.files import file_hash, is_being_written, is_regular, is_temporary, set_aside
from kareus.artifacts.manifest import SUFFIX, read_manifest
from kareus.artifacts.names import leads_through_link
from kareus.artifacts.store import JOURNAL, set_damaged_lines_aside
from kareus.errors import ArtifactError
from kareus.training.checkpoint_files import HEADER, TENSORS, is_checkpoint_file
from kareus.verify.checks import is_checked, problem_of
from kareus.verify.outputs import is_list_of_outputs, is_sealed, read_outputs, results_of
from kareus.verify.sound_files import SoundFiles

_NO_FILE, _NO_FOLDER = "is no regular file", "is no folder"
_SEALED = "sealed"
"""Under what a configuration is known to have a seal."""


class FindingKind(StrEnum):
    """Kind of a problem with a file."""

    DAMAGED = "damaged"
    MISSING = "missing"
    LEFT_OVER = "left over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One file that is not as it should be."""

    path: Path
    kind: FindingKind
    reason: str


def survey(places: Iterable[Path], sound: SoundFiles) -> list[Finding]:
    """Return what is damaged, missing or left over in files and folders.

    Symbolic links within them are not followed, nor is what a list names behind one.

    Args:
        places: files and folders; those that do not exist are passed over.
        sound: files that were found sound before, which are passed over; those that are found sound are added.
    """
    findings = dict[Path, Finding]()
    for place in places:
        for path in [place] if place.is_file() else _below(place):
            for finding in _findings(path, sound):
                findings.setdefault(finding.path, finding)
    return sorted(findings.values(), key=lambda finding: finding.path)


def has_checked(folder: Path) -> bool:
    """Return whether anything below a folder is of Kareus, so that its being sound says something."""
    return any(is_checked(path) for path in _below(folder))


def _below(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, and half-written folders."""
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        yield from (here / name for name in files if is_regular(here / name))
        for name in [name for name in folders if is_temporary(here / name)]:
            folders.remove(name)
            if not (here / name).is_symlink():
                yield here / name


def _findings(path: Path, sound: SoundFiles) -> Iterator[Finding]:
    if is_temporary(path):
        if not is_being_written(path):
            yield Finding(path=path, kind=FindingKind.LEFT_OVER, reason="half written by a command that was killed")
        return
    if is_checkpoint_file(path) and not path.with_suffix(HEADER).exists():
        yield Finding(path=path, kind=FindingKind.LEFT_OVER, reason="its checkpoint was not completed")
        return
    if not sound.has(path) or is_checkpoint_file(path):  # whether tensors are sound depends on another file
        problem = problem_of(path)
        if problem:
            yield Finding(path=path, kind=FindingKind.DAMAGED, reason=problem)
            return
        sound.add(path)
    if is_checkpoint_file(path) and path.suffix == HEADER and not path.with_suffix(TENSORS).exists():
        yield Finding(path=path.with_suffix(TENSORS), kind=FindingKind.MISSING, reason=f"described by {path.name}")
    if path.name.endswith(SUFFIX):
        yield from _of_manifest(path, sound)
    if is_list_of_outputs(path):
        yield from _of_outputs(path, sound)


def _of_manifest(path: Path, sound: SoundFiles) -> Iterator[Finding]:
    """Yield files that a sound manifest lists and that differ from it."""
    try:
        listed = read_manifest(path)
    except ArtifactError:
        return  # it changed since it was checked; the next survey finds it
    for name, expected in listed.items():
        file = path.parent / name
        if leads_through_link(path.parent, name):
            continue
        if file.exists() and not file.is_file():
            yield Finding(path=file, kind=FindingKind.DAMAGED, reason=_NO_FILE)
        elif not file.exists():
            yield Finding(path=file, kind=FindingKind.MISSING, reason=f"listed in {path.name}")
        elif not sound.has(file, expected):
            if file_hash(file) == expected:
                sound.add(file, expected)
            else:
                yield Finding(path=file, kind=FindingKind.DAMAGED, reason=f"not the file that {path.name} lists")


def _of_outputs(path: Path, sound: SoundFiles) -> Iterator[Finding]:
    """Outputs that a sound list names and that are missing, or of another kind, or have lost their seal."""
    try:
        listed = read_outputs(path)
    except ArtifactError:
        return  # it changed since it was checked; the next survey finds it
    results, source = results_of(path), f"{path.parent.name}/{path.name}"
    for name in listed:
        output = results / name
        if leads_through_link(results, name):
            continue
        if not output.exists():
            yield Finding(path=_first_missing(output, results), kind=FindingKind.MISSING, reason=f"listed in {source}")
        elif not (output.is_dir() if name.endswith("/") else output.is_file()):
            yield Finding(path=output, kind=FindingKind.DAMAGED, reason=_NO_FOLDER if name.endswith("/") else _NO_FILE)
        elif output.suffix == ".yaml" and not sound.has(output, _SEALED):
            if not is_sealed(output):
                yield Finding(path=output, kind=FindingKind.DAMAGED, reason="has lost its seal")
            else:
                sound.add(output, _SEALED)


def _first_missing(path: Path, root: Path) -> Path:
    """The topmost folder below `root` that is missing on the way to a file, or the file itself."""
    missing = [above for above in (path, *path.parents) if above.is_relative_to(root) and not above.exists()]
    return missing[-1]


def repair(finding: Finding) -> str:
    """Set aside or remove what was reported, so that a run makes it again; of a journal, the damaged lines alone.

    What is damaged is never deleted: it may be what a user copied and edited, or a checkpoint, which cannot be made
    again. It is kept under another name. Temporary files have names that nobody else gives.

    Returns:
        What was done.
    """
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
