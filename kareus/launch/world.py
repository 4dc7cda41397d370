"""This process among all ranks: where it stands, on which device, and how it found the others."""

import datetime
import json
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from kareus.errors import EngineError
from kareus.launch.ranks import Groups, Lines, Place, groups_of, lines_of, place_of
from kareus.model.communicators.choice import Library
from kareus.model.communicators.mscclpp import load_library
from kareus.workload.config import Workload

_LONGEST_WAIT = datetime.timedelta(hours=1)
"""What a rank waits for what another shares, such as the hash of a large file."""
BYTES_PER_VALUE = 2
"""Collectives of the blocks are in bfloat16 on GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All ranks, as this one sees them."""

    rank: int
    size: int
    store: Store
    device: torch.device
    library: Library

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def share(self, name: str, value: Any) -> list[Any]:
        """Publish plain data under a name that is used once; returns what all ranks published, by rank."""
        self.store.set(f"{name}-{self.rank}", json.dumps(value))
        if self.rank == 0:
            self.store.set(name, json.dumps([self._get(f"{name}-{rank}") for rank in range(self.size)]))
        shared: list[Any] = self._get(name)
        return shared

    def _get(self, key: str) -> Any:
        self.store.wait([key], _LONGEST_WAIT)
        return json.loads(self.store.get(key))

    def wait(self) -> None:
        """Wait until the device has done all that was launched."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def wait_for_computation(self) -> None:
        """Wait until the device has computed what was launched; messages to and from other stages may be under way."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rank stands, and its groups."""

    place: Place
    groups: Groups
    lines: Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How ranks found each other, before any of them can do something."""

    rank: int
    size: int
    store: Store


def meet() -> Meeting:
    """Find the store that all ranks share, as torchrun says in the environment; without it, be alone."""
    if "RANK" not in os.environ:
        return Meeting(rank=0, size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    store, rank, size = next(rendezvous("env://"))
    return Meeting(rank=rank, size=size, store=store)


def world_of(meeting: Meeting, library: Library, run: str) -> World:
    """The world in which `library` communicates.

    Args:
        meeting: of this rank.
        library: who communicates.
        run: identity of this start. What ranks of an earlier start left in the store has another prefix.

    Raises:
        EngineError: it is not installed, or there is no GPU for it.
    """
    if library is Library.MSCCLPP:
        load_library()
    device = torch.device("cpu")
    if library is not Library.GLOO:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise EngineError(
                f"--communicator {library}: needs a GPU for each rank and there is no GPU {local} here; take gloo to "
                "train on CPUs."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    store = PrefixStore(run, meeting.store)
    return World(rank=meeting.rank, size=meeting.size, store=store, device=device, library=library)


def join(world: World, workload: Workload) -> Standing:
    """Start communicating; every rank calls this.

    Raises:
        EngineError: there are more or fewer ranks than the workload has GPUs, or the library is missing.
    """
    parallelism = workload.parallelism
    place = place_of(world.rank, parallelism, world.size)
    backend = "gloo" if world.device.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=PrefixStore("kareus", world.store), rank=world.rank, world_size=world.size)
    tokens = workload.microbatch_size * workload.sequence_length // parallelism.cp
    scratch_bytes = tokens * workload.model.hidden_size * BYTES_PER_VALUE
    return Standing(
        place=place,
        groups=groups_of(place, parallelism, world.library, scratch_bytes),
        lines=lines_of(place, parallelism, world.library, ties_ends=workload.model.tie_embeddings),
    )


def over_all_ranks(*values: float) -> list[float]:
    """Sum of each value over all ranks; all wait for the last."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in total]
