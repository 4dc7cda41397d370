"""Checkpoints: what every rank needs to go on exactly where it was, in files that are whole or absent.

A rank writes its tensors (safetensors), then a JSON file with everything else and the tensors' hash. A checkpoint
is complete once the JSON files of all ranks are there and are of one run; ranks need not wait for each other, and a
kill between two files leaves the checkpoint before valid. Nothing is ever unpickled.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kareus.artifacts.files import read_json, write_json
from kareus.artifacts.records import from_plain, to_plain
from kareus.engine.data.batches import DataPosition
from kareus.engine.state import from_parts, to_parts
from kareus.errors import ArtifactError, ConfigError
from kareus.model.weights import save_tensors

SCHEMA_VERSION = 2

_PREFIX = "iteration-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which files are this rank's."""

    folder: Path
    """Of all checkpoints of a training."""
    rank: int
    ranks: int
    run: str
    """Identity of this start of the training, the same on all ranks: files of different starts are never mixed."""
    subject: str
    """Hash of what is trained and how it is sharded; a checkpoint of something else is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of one rank after an iteration."""

    iteration: int
    """Iterations done."""
    model: Mapping[str, Tensor]
    """What the rank optimizes of each weight, in fp32, by name."""
    optimizer: Mapping[str, Any]
    """As `torch.optim.Optimizer.state_dict` gives it."""
    random: Mapping[str, Tensor]
    """As `random_state` gives it."""
    data: DataPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What the JSON file of a rank says."""

    schema_version: int
    run: str
    subject: str
    ranks: int
    iteration: int
    sha256: str
    """Of the tensors' file."""
    data: DataPosition


def save(place: Place, checkpoint: Checkpoint) -> None:
    """Write this rank's part; when all ranks have returned, the checkpoint is complete.

    Raises:
        ArtifactError: the system refuses, as where the disk is full.
    """
    parts = {"model": dict(checkpoint.model), "optimizer": checkpoint.optimizer, "random": dict(checkpoint.random)}
    tensors, plain = to_parts(parts)
    path = _tensors(place, checkpoint.iteration)
    save_tensors(tensors, path)
    header = _Header(
        schema_version=SCHEMA_VERSION,
        run=place.run,
        subject=place.subject,
        ranks=place.ranks,
        iteration=checkpoint.iteration,
        sha256=_hash(path),
        data=checkpoint.data,
    )
    write_json(path.with_suffix(".json"), {"header": to_plain(header), "state": plain})


def latest(place: Place) -> int | None:
    """Iteration of the last complete checkpoint, or None.

    Raises:
        ArtifactError: the last one is of another training, or was made by another number of ranks.
    """
    for iteration in sorted(_iterations(place.folder), reverse=True):
        header = _complete(place, iteration)
        if header is not None:
            if header.subject != place.subject:
                raise ArtifactError(
                    f"{place.folder}: holds checkpoints of another model, parallelism, chunks of its stages, sequence "
                    "length or seed; begin in a new folder."
                )
            return iteration
    return None


def load(place: Place, iteration: int) -> Checkpoint:
    """Read this rank's part of a complete checkpoint; tensors are on the CPU.

    Raises:
        ArtifactError: a file is missing, corrupt or of another version.
    """
    import safetensors.torch  # noqa: PLC0415 - only training needs it

    path = _tensors(place, iteration)
    header, plain = _read(path.with_suffix(".json"))
    if not path.exists() or _hash(path) != header.sha256:
        raise ArtifactError(
            f"{path}: missing or corrupt; delete {path.parent} to resume from the checkpoint before it."
        )
    parts = from_parts(safetensors.torch.load_file(path), plain)
    return Checkpoint(iteration=header.iteration, data=header.data, **parts)


def prune(place: Place, keep: int) -> None:
    """Delete all but the last `keep` complete checkpoints, and what is incomplete before them. For one rank to call."""
    complete = [i for i in sorted(_iterations(place.folder)) if _complete(place, i) is not None]
    if len(complete) < keep:
        return
    oldest = complete[-keep]
    for iteration in _iterations(place.folder):
        if iteration < oldest:
            shutil.rmtree(_folder(place.folder, iteration))


def random_state() -> dict[str, Tensor]:
    """State of the random number generators of the CPU and, where there is one, of the current GPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Set the generators to what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _folder(folder: Path, iteration: int) -> Path:
    return folder / f"{_PREFIX}{iteration:08d}"


def _tensors(place: Place, iteration: int, rank: int | None = None) -> Path:
    number = place.rank if rank is None else rank
    return _folder(place.folder, iteration) / f"rank-{number:05d}.safetensors"


def _iterations(folder: Path) -> list[int]:
    names = [path.name.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*")]
    return [int(name) for name in names if name.isdecimal()]


def _complete(place: Place, iteration: int) -> _Header | None:
    """Header of rank 0 if all ranks of the run that wrote it have written theirs."""
    first = _tensors(place, iteration, 0).with_suffix(".json")
    if not first.exists():
        return None
    header, _ = _read(first)
    if header.ranks != place.ranks:
        raise ArtifactError(
            f"{first.parent}: was written by {header.ranks} ranks, this run has {place.ranks}; use as many, or "
            "begin in a new folder."
        )
    others = [_tensors(place, iteration, rank).with_suffix(".json") for rank in range(1, place.ranks)]
    whole = all(path.exists() and _read(path)[0].run == header.run for path in others)
    return header if whole else None


def _read(path: Path) -> tuple[_Header, Any]:
    content = read_json(path)
    try:
        if not isinstance(content, dict) or "state" not in content:
            raise ConfigError("has no state")
        header = from_plain(_Header, content.get("header"))
    except ConfigError as error:
        raise ArtifactError(
            f"{path}: not a checkpoint's ({error}); delete {path.parent} to resume from the checkpoint before it."
        ) from error
    if header.schema_version != SCHEMA_VERSION:
        raise ArtifactError(
            f"{path}: version {header.schema_version}, this Kareus reads {SCHEMA_VERSION}; resume with the version "
            "that wrote it."
        )
    return header, content["state"]


def _hash(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
