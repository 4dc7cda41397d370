"""Checkpoints: what every rank needs to go on exactly where it was, in files that are whole or absent.

A rank writes its tensors (safetensors), then a JSON file with everything else and the tensors' hash. A checkpoint
is complete once the JSON files of all ranks are there and are of one run; ranks need not wait for each other, and a
kill between two files leaves the checkpoint before valid. Nothing is ever unpickled.

A training goes on from the last checkpoint of which the files of all ranks are as they were written. Each rank checks
its own files, wherever they are, and all tell each other what they found, so that all go on from the same one.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from kareus.artifacts.files import file_hash
from kareus.artifacts.records import from_plain, to_plain
from kareus.errors import ArtifactError
from kareus.model.weights import save_tensors
from kareus.training.checkpoint_files import (
    SCHEMA_VERSION,
    Header,
    Holdings,
    agreed,
    check_tensors,
    header_file,
    holdings,
    is_complete,
    iterations_in,
    read_header,
    tensors_file,
    write_header,
)
from kareus.training.data.batches import DataPosition
from kareus.training.state import from_parts, to_parts

logger = logging.getLogger(__name__)

AllGather = Callable[[str, Any], list[Any]]
"""Publishes plain data under a name and returns the data of all ranks, by rank; see `Rendezvous.all_gather`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCheckpoints:
    """Identity of one rank's files of the checkpoints of a training."""

    folder: Path
    """Folder of all checkpoints of the training."""
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
    """The rank's shard of each weight, in fp32, by name."""
    optimizer: Mapping[str, Any]
    """Result of `torch.optim.Optimizer.state_dict`."""
    random: Mapping[str, Tensor]
    """Result of `random_state`."""
    data: DataPosition


def save(files: RankCheckpoints, checkpoint: Checkpoint) -> None:
    """Write this rank's part; when all ranks have returned, the checkpoint is complete.

    Raises:
        ArtifactError: the system refuses to write, for instance because the disk is full.
    """
    parts = {"model": dict(checkpoint.model), "optimizer": checkpoint.optimizer, "random": dict(checkpoint.random)}
    tensors, plain = to_parts(parts)
    path = tensors_file(files.folder, checkpoint.iteration, files.rank)
    described = header_file(files.folder, checkpoint.iteration, files.rank)
    described.unlink(missing_ok=True)  # that of an earlier start does not describe the new tensors
    save_tensors(tensors, path)
    header = Header(
        schema_version=SCHEMA_VERSION,
        run=files.run,
        subject=files.subject,
        rank=files.rank,
        ranks=files.ranks,
        iteration=checkpoint.iteration,
        sha256=file_hash(path),
        data=checkpoint.data,
    )
    write_header(described, header, plain)


def last_whole(files: RankCheckpoints, all_gather: AllGather) -> Checkpoint | None:
    """Read this rank's part of the last whole checkpoint, or return None if there never was one; every rank calls this.

    Rank 0 logs the checkpoints that are skipped.

    Raises:
        ArtifactError: there are checkpoints and none of them is whole; or the last one is of another training or
            version, or was made by another number of ranks.
    """
    own = holdings(files.folder, files.rank, files.ranks, files.subject)
    of_ranks = [from_plain(Holdings, each) for each in all_gather("checkpoints", to_plain(own))]
    candidates = agreed(of_ranks)
    passed_over = {i: reason for each in reversed(of_ranks) for i, reason in each.damaged.items()}
    unfinished = {i for each in of_ranks for i in (*each.runs, *each.unfinished)} - {*candidates, *passed_over}
    for iteration in candidates:
        found, damage = _tried(files, iteration)
        damages = [each for each in all_gather(f"checkpoint-{iteration}", damage) if each is not None]
        if found is not None and not damages:
            left = {i: f"{header_file(files.folder, i, 0).parent}: not all ranks had written it." for i in unfinished}
            _warn(files, [reason for i, reason in sorted((left | passed_over).items()) if i > iteration])
            return found
        passed_over[iteration] = damages[0]
    if passed_over:
        raise ArtifactError(
            f"{files.folder}: none of the checkpoints is whole: {passed_over[max(passed_over)]} Restore a copy of it, "
            "or begin in a new folder."
        )
    if unfinished and files.rank == 0:
        folders = ", ".join(header_file(files.folder, i, 0).parent.name for i in sorted(unfinished))
        logger.warning(
            "%s: files are missing of %s, which were never finished or have lost them. Beginning at iteration 0.",
            files.folder,
            folders,
        )
    return None


def load(files: RankCheckpoints, iteration: int) -> Checkpoint:
    """Read this rank's part of a complete checkpoint; tensors are on the CPU.

    Raises:
        ArtifactError: a file is missing, corrupt, of another version, or of another rank or iteration.
    """
    import safetensors.torch  # noqa: PLC0415 - only training needs it

    path = tensors_file(files.folder, iteration, files.rank)
    header, plain = read_header(header_file(files.folder, iteration, files.rank))
    check_tensors(path, header.sha256)
    try:
        parts = from_parts(safetensors.torch.load_file(path), plain)
        return Checkpoint(iteration=header.iteration, data=header.data, **parts)
    except (SafetensorError, AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{path}: not the tensors of a checkpoint ({reason}).") from error


def prune(files: RankCheckpoints, iteration: int, keep: int) -> None:
    """Delete all but the last `keep` complete checkpoints up to `iteration`, and what is incomplete before them.

    For one rank to call. What is later than `iteration` was passed over when the training went on, and does not count.
    """
    before = [i for i in iterations_in(files.folder) if i <= iteration]
    complete = [i for i in before if is_complete(files.folder, i, files.ranks)]
    if len(complete) < keep:
        return
    for old in before:
        if old < complete[-keep]:
            shutil.rmtree(header_file(files.folder, old, 0).parent)


def _tried(files: RankCheckpoints, iteration: int) -> tuple[Checkpoint | None, str | None]:
    """Return this rank's part of a checkpoint, or what is wrong with it."""
    try:
        return load(files, iteration), None
    except ArtifactError as error:
        return None, str(error)


def _warn(files: RankCheckpoints, damages: list[str]) -> None:
    if files.rank == 0:
        for damage in damages:
            logger.warning("%s Going on from the checkpoint before it.", damage)


def random_state() -> dict[str, Tensor]:
    """Return the state of the random number generators of the CPU and, where there is one, of the current GPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Set the generators to what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
