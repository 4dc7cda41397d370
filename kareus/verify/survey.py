"""Surveying folders: every file in them that is damaged, missing or left over."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kareus.artifacts.files import file_hash
from kareus.artifacts.manifest import SUFFIX, read_manifest
from kareus.engine.checkpoint_files import HEADER, is_checkpoint_file
from kareus.errors import ArtifactError
from kareus.verify.checks import problem_of
from kareus.verify.known import Known

MADE_FROM = {
    "schedule/space.parquet": ("partition/partitions.parquet",),
    "frontier/microbatch.parquet": (
        "partition/segments.parquet",
        "partition/partitions.parquet",
        "schedule/space.parquet",
        "profile/components.parquet",
        "profile/instructions.parquet",
    ),
    "pipeline/iteration.parquet": ("pipeline/instructions.parquet", "frontier/microbatch.parquet"),
    "engine/end-to-end/iterations.parquet": ("pipeline/iteration.parquet",),
}
"""What must be in the folder of a workload beside what was made from it."""
TOGETHER = ("candidates.parquet", "rounds.parquet", "proposals.parquet")
"""Tables of a search, written together."""
_TEMPORARY = re.compile(r"\..+\.(\d+)(\.old)?\.tmp")


class Kind(StrEnum):
    """What is wrong with a file."""

    DAMAGED = "damaged"
    MISSING = "missing"
    LEFT_OVER = "left over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One file that is not as it should be."""

    path: Path
    kind: Kind
    reason: str


def survey(places: Iterable[Path], known: Known) -> list[Finding]:
    """Return what is damaged, missing or left over in files and folders.

    Symbolic links within them are not followed.

    Args:
        places: files and folders; those that do not exist are passed over.
        known: files that were found sound before, which are passed over; those that are found sound are added.
    """
    found = dict[Path, Finding]()
    for place in places:
        for path in [place] if place.is_file() else _below(place):
            for finding in _findings(path, known):
                found.setdefault(finding.path, finding)
    return sorted(found.values(), key=lambda finding: finding.path)


def is_temporary(path: Path) -> bool:
    """Return whether the name of a file or folder is that of something half written."""
    return _TEMPORARY.fullmatch(path.name) is not None


def _below(folder: Path) -> Iterator[Path]:
    """Files below a folder, and half-written folders."""
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        yield from (here / name for name in files if not (here / name).is_symlink())
        for name in [name for name in folders if is_temporary(here / name)]:
            folders.remove(name)
            yield here / name


def _findings(path: Path, known: Known) -> Iterator[Finding]:
    if is_temporary(path):
        if not _is_being_written(path):
            yield Finding(path=path, kind=Kind.LEFT_OVER, reason="half written by a command that was killed")
        return
    if is_checkpoint_file(path) and not path.with_suffix(HEADER).exists():
        yield Finding(path=path, kind=Kind.LEFT_OVER, reason="its checkpoint was not completed")
        return
    if not known.has(path) or is_checkpoint_file(path):  # whether tensors are sound depends on another file
        problem = problem_of(path)
        if problem:
            yield Finding(path=path, kind=Kind.DAMAGED, reason=problem)
            return
        known.add(path)
    if path.name.endswith(SUFFIX):
        yield from _of_manifest(path, known)
    yield from _incomplete(path)


def _of_manifest(path: Path, known: Known) -> Iterator[Finding]:
    """Files that a sound manifest lists and that are not as it says."""
    try:
        listed = read_manifest(path)
    except ArtifactError:
        return  # it changed since it was checked; the next survey says so
    for name, expected in listed.items():
        file = path.parent / name
        if file.is_symlink():
            continue
        if not file.is_file():
            yield Finding(path=file, kind=Kind.MISSING, reason=f"listed in {path.name}")
        elif not known.has(file, expected):
            if file_hash(file) == expected:
                known.add(file, expected)
            else:
                yield Finding(path=file, kind=Kind.DAMAGED, reason=f"not the file that {path.name} lists")


def _incomplete(path: Path) -> Iterator[Finding]:
    """What must be beside a file and is not."""
    place = "/".join(path.parts[-3:] if path.parts[-3:-2] == ("engine",) else path.parts[-2:])
    if place in MADE_FROM:
        root = path.parents[place.count("/")]
        beside = [root / name for name in MADE_FROM[place]]
    elif path.name in TOGETHER and path.parent.parent.name == "search":
        beside = [path.parent / name for name in TOGETHER]
    else:
        return
    for other in beside:
        if not other.exists():
            yield Finding(path=other, kind=Kind.MISSING, reason=f"{place} was made from it")


def _is_being_written(path: Path) -> bool:
    """Whether the process that writes a temporary file is alive."""
    match = _TEMPORARY.fullmatch(path.name)
    try:
        os.kill(int(match[1]) if match else 0, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
