"""Files of checkpoints: their paths, the JSON file of a rank, and checks of both.

A checkpoint is a folder `iteration-<n>` with two files of each rank that wrote it: tensors (`rank-<n>.safetensors`),
and a sealed JSON file with everything else and the hash of the tensors' file. Another number of ranks may read it: each
then checks the files of every so many-th rank. Nothing here imports torch, so that files can be checked where there is
none.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.artifacts.files import file_hash, read_text, write_json
from kareus.artifacts.records import from_plain, parse_json, to_plain
from kareus.artifacts.seals import KEY, sealed, unsealed
from kareus.errors import ArtifactError, ConfigError, KareusError
from kareus.training.batches import DataPosition

SCHEMA_VERSION = 4
HEADER = ".json"
TENSORS = ".safetensors"
_PREFIX = "iteration-"
_UNSEALED = (1, 2)
"""Versions whose files had no seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Content of a rank's JSON file."""

    schema_version: int
    run: str
    """Identity of the start of the training that wrote it."""
    subject: str
    """Hash of what is trained, however it is laid out over ranks."""
    rank: int
    ranks: int
    """Number of ranks that wrote the checkpoint."""
    iteration: int
    """Number of iterations done."""
    sha256: str
    """Hash of the tensors' file."""
    data: DataPosition


def iteration_folder(folder: Path, iteration: int) -> Path:
    """Return where the checkpoint after `iteration` iterations is; `folder` has all checkpoints of a training."""
    return folder / f"{_PREFIX}{iteration:08d}"


def tensors_file(folder: Path, iteration: int, rank: int) -> Path:
    """Return the path of the file with the tensors of `rank`."""
    return iteration_folder(folder, iteration) / f"rank-{rank:05d}{TENSORS}"


def header_file(folder: Path, iteration: int, rank: int) -> Path:
    """Return where the JSON file of `rank` is."""
    return tensors_file(folder, iteration, rank).with_suffix(HEADER)


def is_checkpoint_file(path: Path) -> bool:
    """Return whether the name of a file is that of a rank's JSON or tensors' file."""
    is_ranks = re.fullmatch(rf"rank-\d+({re.escape(HEADER)}|{re.escape(TENSORS)})", path.name)
    return bool(is_ranks and re.fullmatch(rf"{_PREFIX}\d+", path.parent.name))


def iterations_in(folder: Path) -> list[int]:
    """Return the iterations after which there are checkpoints, whole or not, in ascending order."""
    names = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return sorted({int(name) for name in names if name.isascii() and name.isdecimal()})


def is_complete(folder: Path, iteration: int) -> bool:
    """Return whether all ranks of one start have written their JSON file, the last thing that each writes."""
    try:
        first = read_header(header_file(folder, iteration, 0))
        return all(read_header(header_file(folder, iteration, rank)).run == first.run for rank in range(first.ranks))
    except ArtifactError:
        return False


def write_header(path: Path, header: Header) -> None:
    """Write the JSON file of a rank."""
    write_json(path, sealed({"header": to_plain(header)}))


def read_header(path: Path) -> Header:
    """Read the JSON file of a rank.

    Raises:
        OldCheckpointError: the file is of another version of Kareus.
        ArtifactError: the file cannot be read, was changed after it was written, or was moved here from elsewhere.
    """
    try:
        header = from_plain(Header, _document(path).get("header"))
    except ConfigError as error:
        raise ArtifactError(f"{path}: not a whole file of a checkpoint ({error}).") from error
    if path != header_file(path.parents[1], header.iteration, header.rank):
        raise ArtifactError(
            f"{path}: was written as rank {header.rank} of iteration {header.iteration}; files of checkpoints cannot "
            "be exchanged or renamed."
        )
    return header


def check_tensors(path: Path, sha256: str) -> None:
    """Check that the tensors' file is the one that was written, without parsing it.

    Raises:
        ArtifactError: the file is missing, or its bytes are others.
    """
    try:
        actual = file_hash(path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}).") from error
    if actual != sha256:
        raise ArtifactError(f"{path}: its bytes are not those that were written.")


def damage(path: Path) -> str | None:
    """Return what is wrong with one file of a checkpoint, a rank's JSON or tensors' file, or None.

    Files of another version are not known to be damaged.
    """
    try:
        header = read_header(path.with_suffix(HEADER))
        if path.suffix == TENSORS:
            check_tensors(path, header.sha256)
    except OldCheckpointError:
        return None
    except KareusError as error:
        return str(error)
    return None


class OldCheckpointError(ArtifactError):
    """A checkpoint of another version of Kareus. It is whole, so that nothing may be trained over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Checkpoint files that one rank has checked."""

    headers: tuple[Header, ...]
    """Of the undamaged JSON files."""
    damaged: dict[int, str]
    """Damage of a JSON file, by iteration."""
    unfinished: tuple[int, ...]
    """Iterations of which there are tensors of a rank and no JSON file."""


def holdings(folder: Path, rank: int, ranks: int, subject: str) -> Holdings:
    """Return what `rank` finds of its share of the files in `folder`; tensors are not read.

    Its share is its own files, where as many ranks wrote the checkpoint; else those of every `ranks`-th rank.

    Raises:
        ArtifactError: the last checkpoint is of another training or version.
    """
    headers: list[Header] = []
    damaged: dict[int, str] = {}
    unfinished: list[int] = []
    for iteration in reversed(iterations_in(folder)):
        for writer in (n for n in _writers_in(folder, iteration) if n % ranks == rank):
            path = header_file(folder, iteration, writer)
            if not path.exists():
                unfinished.append(iteration)
                continue
            try:
                header = read_header(path)
            except OldCheckpointError:
                raise
            except ArtifactError as error:
                damaged[iteration] = str(error)
                continue
            if not headers:
                _check_training(folder, header, subject)
            headers.append(header)
    return Holdings(headers=tuple(headers), damaged=damaged, unfinished=tuple(unfinished))


def agreed(of_ranks: Sequence[Holdings]) -> list[Header]:
    """Return rank 0's header of every checkpoint of which all files of one start are there, the last one first."""
    by_start: dict[tuple[int, str], dict[int, Header]] = defaultdict(dict)
    for header in (header for each in of_ranks for header in each.headers):
        by_start[header.iteration, header.run][header.rank] = header
    complete = [of_start[0] for of_start in by_start.values() if 0 in of_start and len(of_start) == of_start[0].ranks]
    return sorted(complete, key=lambda header: header.iteration, reverse=True)


def _writers_in(folder: Path, iteration: int) -> list[int]:
    """Return the ranks that have files in a checkpoint, whole or not, in ascending order."""
    files = tensors_file(folder, iteration, 0).parent.glob("rank-*")
    return sorted({int(path.stem.removeprefix("rank-")) for path in files if is_checkpoint_file(path)})


def _document(path: Path) -> dict[str, Any]:
    """Return the content of a rank's JSON file, once its seal and its version are right."""
    content = parse_json(read_text(path))
    if _version(content) not in _UNSEALED or KEY in content:
        content = unsealed(content)
    version = _version(content)
    if version is not None and version != SCHEMA_VERSION:
        raise OldCheckpointError(
            f"{path}: version {version}, this Kareus reads {SCHEMA_VERSION}; resume with the version that wrote it, or "
            "begin in a new folder."
        )
    assert isinstance(content, dict)
    return content


def _version(content: Any) -> int | None:
    header = content.get("header") if isinstance(content, dict) else None
    version = header.get("schema_version") if isinstance(header, dict) else None
    return version if isinstance(version, int) else None


def _check_training(folder: Path, header: Header, subject: str) -> None:
    if header.subject != subject:
        raise ArtifactError(
            f"{folder}: holds checkpoints of another model, sequence length or seed; begin in a new folder."
        )
