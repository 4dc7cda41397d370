"""Checkpoints: what every rank needs to go on exactly where it was, in files that are whole or absent.

A rank writes its tensors (safetensors), then a JSON file with everything else and the tensors' hash. A checkpoint
is complete once the JSON files of all ranks are there and are of one run; ranks need not wait for each other, and a
kill between two files leaves the checkpoint before valid. Nothing is ever unpickled.

Tensors are boxes of whole weights and of their moments, named as in a Hugging Face checkpoint, so that ranks of any
layout can read what they need from the files of any other. A rank reads its own file, and of others only the boxes that
it lacks. `torch.distributed.checkpoint` does the same with files that are unpickled and that nothing seals.

A training goes on from the last checkpoint of which all files are as they were written. Ranks share out the files that
they check, each its own wherever it is, and all tell each other what they found, so that all go on from the same one.
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kareus.artifacts.files import file_hash
from kareus.artifacts.records import from_plain, to_plain
from kareus.errors import ArtifactError
from kareus.model.weights import save_tensors
from kareus.training.batches import DataPosition
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
    tensors_file,
    write_header,
)
from kareus.training.weight_slices import Box, difference, intersection

logger = logging.getLogger(__name__)

AllGather = Callable[[str, Any], list[Any]]
"""Publishes plain data under a name and returns the data of all ranks, by rank; see `Rendezvous.all_gather`."""

_RANDOM = "random/"


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
    """Hash of what is trained; a checkpoint of something else is refused."""


class StateSlice(NamedTuple):
    """A box of one state of a weight of the whole model."""

    state: str
    """`weight`, or a moment of AdamW as PyTorch names it."""
    name: str
    """Name of the whole weight in a Hugging Face checkpoint."""
    box: Box

    @property
    def key(self) -> str:
        """Name of the tensor in a file, which knows the box's size itself."""
        return f"{self.state}/{self.name}@{','.join(map(str, self.box.offsets))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """State of one rank after an iteration. The learning rate follows from the iteration."""

    iteration: int
    """Iterations done, each one step of the optimizer."""
    tensors: Mapping[StateSlice, Tensor]
    """What the rank holds, fp32; each tensor has the box's size."""
    random: Mapping[str, Tensor]
    """Result of `random_state`."""
    data: DataPosition


def save(files: RankCheckpoints, checkpoint: Checkpoint) -> None:
    """Write this rank's part; when all ranks have returned, the checkpoint is complete.

    Args:
        files: of this rank.
        checkpoint: its tensors are on the CPU, contiguous, and share no memory.

    Raises:
        ArtifactError: the system refuses to write, for instance because the disk is full.
    """
    path = tensors_file(files.folder, checkpoint.iteration, files.rank)
    described = header_file(files.folder, checkpoint.iteration, files.rank)
    described.unlink(missing_ok=True)  # that of an earlier start does not describe the new tensors
    tensors = {each.key: tensor for each, tensor in checkpoint.tensors.items()}
    save_tensors(tensors | {_RANDOM + name: state for name, state in checkpoint.random.items()}, path)
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
    write_header(described, header)


def last_whole(files: RankCheckpoints, all_gather: AllGather) -> Header | None:
    """Return rank 0's header of the last whole checkpoint, or None if there never was one; every rank calls this.

    Rank 0 logs the checkpoints that are skipped.

    Raises:
        ArtifactError: there are checkpoints and none of them is whole; or the last one is of another training or
            version.
    """
    holdings_here = holdings(files.folder, files.rank, files.ranks, files.subject)
    of_ranks = [from_plain(Holdings, each) for each in all_gather("checkpoints", to_plain(holdings_here))]
    candidates = agreed(of_ranks)
    passed_over = {i: reason for each in reversed(of_ranks) for i, reason in each.damaged.items()}
    begun = {i for each in of_ranks for i in (*(header.iteration for header in each.headers), *each.unfinished)}
    unfinished = begun - {*(header.iteration for header in candidates), *passed_over}
    for candidate in candidates:
        damages = all_gather(f"checkpoint-{candidate.iteration}", _damage(files, holdings_here, candidate))
        reasons = [each for each in damages if each is not None]
        if not reasons:
            left = {i: f"{header_file(files.folder, i, 0).parent}: not all ranks had written it." for i in unfinished}
            _warn(files, [reason for i, reason in sorted((left | passed_over).items()) if i > candidate.iteration])
            return candidate
        passed_over[candidate.iteration] = reasons[0]
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


def load(files: RankCheckpoints, header: Header, targets: Mapping[StateSlice, Tensor]) -> dict[str, Tensor]:
    """Fill `targets` from a checkpoint that `last_whole` found, and return the state of the random generators.

    Of the files of other ranks, those are read that have a part of what this rank's own has not; the random state is
    that of rank 0 where this rank had none.

    Raises:
        ArtifactError: a file cannot be read from here, or all files together lack something.
    """
    same_rank = files.rank if files.rank < header.ranks else 0
    missing: dict[tuple[str, str], list[tuple[Box, StateSlice]]] = {}
    for target in targets:
        missing.setdefault((target.state, target.name), []).append((target.box, target))
    random: dict[str, Tensor] = {}
    for writer in (same_rank, *(rank for rank in range(header.ranks) if rank != same_rank)):
        with _opened(tensors_file(files.folder, header.iteration, writer)) as file:
            if writer == same_rank:
                random = {key.removeprefix(_RANDOM): file.get_tensor(key) for key in _random_keys(file)}
            for stored in _stored(file):
                if (name := (stored.state, stored.name)) in missing:
                    missing[name] = _fill(targets, missing[name], stored, file.get_slice(stored.key))
        missing = {name: boxes for name, boxes in missing.items() if boxes}
        if not missing:
            return random
    (state, weight), boxes = next(iter(missing.items()))
    raise ArtifactError(
        f"{tensors_file(files.folder, header.iteration, 0).parent}: its files lack the part of {weight} ({state}) that "
        f"begins at {boxes[0][0].offsets}; begin in a new folder, or resume with the version of Kareus that wrote it."
    )


def prune(files: RankCheckpoints, iteration: int, keep: int) -> None:
    """Delete all but the last `keep` complete checkpoints up to `iteration`, and what is incomplete before them.

    For one rank to call. What is later than `iteration` was passed over when the training went on, and does not count.
    """
    before = [i for i in iterations_in(files.folder) if i <= iteration]
    complete = [i for i in before if is_complete(files.folder, i)]
    if len(complete) < keep:
        return
    for old in before:
        if old < complete[-keep]:
            shutil.rmtree(header_file(files.folder, old, 0).parent)


def random_state() -> dict[str, Tensor]:
    """Return the state of the random number generators of the CPU and, where there is one, of the current GPU."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Set the generators to what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _damage(files: RankCheckpoints, here: Holdings, candidate: Header) -> str | None:
    """Return what is wrong with the tensors' files of a checkpoint that this rank checks, or None."""
    try:
        for header in here.headers:
            if (header.iteration, header.run) == (candidate.iteration, candidate.run):
                check_tensors(tensors_file(files.folder, header.iteration, header.rank), header.sha256)
    except ArtifactError as error:
        return str(error)
    return None


def _fill(
    targets: Mapping[StateSlice, Tensor], missing: list[tuple[Box, StateSlice]], stored: StateSlice, file_slice: Any
) -> list[tuple[Box, StateSlice]]:
    """Copy what a stored box has of the missing ones, each in a target; return what is still missing."""
    left: list[tuple[Box, StateSlice]] = []
    for box, target in missing:
        shared = intersection(box, stored.box)
        if shared is None:
            left.append((box, target))
            continue
        targets[target][shared.slices_in(target.box)].copy_(file_slice[shared.slices_in(stored.box)])
        left += [(rest, target) for rest in difference(box, shared)]
    return left


def _stored(file: Any) -> Iterator[StateSlice]:
    """Yield the boxes that a file has."""
    for key in file.keys():  # noqa: SIM118 - no dictionary
        if parts := re.fullmatch(r"(\w+)/(.+)@(\d+(?:,\d+)*)", key):
            state, name, offsets = parts.groups()
            box = Box(tuple(map(int, offsets.split(","))), tuple(file.get_slice(key).get_shape()))
            yield StateSlice(state, name, box)


def _random_keys(file: Any) -> list[str]:
    return [key for key in file.keys() if key.startswith(_RANDOM)]  # noqa: SIM118 - no dictionary


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a tensors' file.

    Raises:
        ArtifactError: it cannot be read, also in the `with` block.
    """
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path}: cannot be read from here; put the checkpoint where all ranks see it, or resume with the layout "
            "that wrote it."
        ) from error
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ArtifactError(f"{path}: not the tensors of a checkpoint ({reason}).") from error


def _warn(files: RankCheckpoints, damages: list[str]) -> None:
    if files.rank == 0:
        for damage in damages:
            logger.warning("%s Going on from the checkpoint before it.", damage)
