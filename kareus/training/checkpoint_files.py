"""Files of checkpoints: their paths, the JSON file of a rank, and checks of both.

A checkpoint is a folder `iteration-<n>` with two files of each rank: tensors (`rank-<n>.safetensors`), and a sealed
JSON file with everything else and the hash of the tensors' file. Nothing here imports torch, so that files can be
checked where there is none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.artifacts.files import file_hash, read_text, write_json
from kareus.artifacts.records import from_plain, parse_json, to_plain
from kareus.artifacts.seals import KEY, sealed, unsealed
from kareus.errors import ArtifactError, ConfigError, KareusError
from kareus.training.data.batches import DataPosition

SCHEMA_VERSION = 3
HEADER = ".json"
TENSORS = ".safetensors"
_PREFIX = "iteration-"
_UNSEALED = (1, 2)
"""Versions whose files had no seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a rank's JSON file."""

    schema_version: int
    run: str
    """Identity of the start of the training that wrote it."""
    subject: str
    """Hash of what is trained and how it is sharded."""
    rank: int
    ranks: int
    iteration: int
    """Number of iterations done."""
    sha256: str
    """Hash of the tensors' file."""
    data: DataPosition


def tensors_file(folder: Path, iteration: int, rank: int) -> Path:
    """Return where the tensors of `rank` are; `folder` has all checkpoints of a training."""
    return folder / f"{_PREFIX}{iteration:08d}" / f"rank-{rank:05d}{TENSORS}"


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


def is_complete(folder: Path, iteration: int, ranks: int) -> bool:
    """Return whether all ranks have written their JSON file, the last thing that each writes."""
    return all(header_file(folder, iteration, rank).exists() for rank in range(ranks))


def write_header(path: Path, header: Header, state: Any) -> None:
    """Write the JSON file of a rank; `state` is plain data."""
    write_json(path, sealed({"header": to_plain(header), "state": state}))


def read_header(path: Path) -> tuple[Header, Any]:
    """Read the JSON file of a rank: its header and its state.

    Raises:
        OldCheckpointError: the file is of another version of Kareus.
        ArtifactError: the file cannot be read, was changed after it was written, or was moved here from elsewhere.
    """
    try:
        document = _document(path)
        header, state = from_plain(Header, document.get("header")), document["state"]
    except (ConfigError, KeyError) as error:
        raise ArtifactError(f"{path}: not a whole file of a checkpoint ({error}).") from error
    if path != header_file(path.parents[1], header.iteration, header.rank):
        raise ArtifactError(
            f"{path}: was written as rank {header.rank} of iteration {header.iteration}; files of checkpoints cannot "
            "be exchanged or renamed."
        )
    return header, state


def check_tensors(path: Path, sha256: str) -> None:
    """Check that the tensors' file is the one that was written, without parsing it.

    Raises:
        ArtifactError: the file is missing, or its bytes are others.
    """
    try:
        found = file_hash(path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}).") from error
    if found != sha256:
        raise ArtifactError(f"{path}: its bytes are not those that were written.")


def damage(path: Path) -> str | None:
    """Return what is wrong with one file of a checkpoint, a rank's JSON or tensors' file, or None.

    Files of another version are not known to be damaged.
    """
    try:
        header, _ = read_header(path.with_suffix(HEADER))
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
    """Checkpoint files of one rank."""

    runs: dict[int, str]
    """Start of the training that wrote the JSON file, by iteration; only of undamaged files."""
    damaged: dict[int, str]
    """Damage of the JSON file, by iteration."""
    unfinished: tuple[int, ...]
    """Iterations of which it has tensors and no JSON file."""


def holdings(folder: Path, rank: int, ranks: int, subject: str) -> Holdings:
    """Return what `rank` has in `folder`; tensors are not read.

    Raises:
        ArtifactError: the last checkpoint is of another training or version, or was made by another number of ranks.
    """
    runs: dict[int, str] = {}
    damaged: dict[int, str] = {}
    unfinished: list[int] = []
    for iteration in reversed(iterations_in(folder)):
        path = header_file(folder, iteration, rank)
        if not path.exists():
            if tensors_file(folder, iteration, rank).exists():
                unfinished.append(iteration)
            continue
        try:
            header, _ = read_header(path)
        except OldCheckpointError:
            raise
        except ArtifactError as error:
            damaged[iteration] = str(error)
            continue
        if not runs:
            _check_training(folder, header, ranks, subject)
        runs[iteration] = header.run
    return Holdings(runs=runs, damaged=damaged, unfinished=tuple(unfinished))


def agreed(of_ranks: Sequence[Holdings]) -> list[int]:
    """Return the iterations of which every rank has a file of the same start of the training, the last one first."""
    shared = set.intersection(*(set(own.runs) for own in of_ranks))
    return sorted((i for i in shared if len({own.runs[i] for own in of_ranks}) == 1), reverse=True)


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


def _check_training(folder: Path, header: Header, ranks: int, subject: str) -> None:
    if header.ranks != ranks:
        raise ArtifactError(
            f"{folder}: was written by {header.ranks} ranks, this run has {ranks}; use as many, or begin in a new "
            "folder."
        )
    if header.subject != subject:
        raise ArtifactError(
            f"{folder}: holds checkpoints of another model, parallelism, chunks of its stages, sequence length or "
            "seed; begin in a new folder."
        )
