"""The rendezvous of a training's ranks, data that they exchange over its store, and tallies."""

import datetime
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_LONGEST_WAIT = datetime.timedelta(hours=1)
"""Longest wait of a rank for the data of another, such as the hash of a large file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Rank of this process, and the key-value store that all ranks share."""

    rank: int
    world_size: int
    store: Store

    def for_start(self, run: str) -> "Rendezvous":
        """Return the same rendezvous with its own part of the store.

        Args:
            run: identity of this start of all ranks. Keys of an earlier start have another prefix.
        """
        return replace(self, store=PrefixStore(run, self.store))

    def all_gather(self, name: str, value: Any) -> list[Any]:
        """Publish plain data under a name that is used once; return the data of all ranks, by rank."""
        self.store.set(f"{name}-{self.rank}", json.dumps(value))
        if self.rank == 0:
            self.store.set(name, json.dumps([self._get(f"{name}-{rank}") for rank in range(self.world_size)]))
        gathered: list[Any] = self._get(name)
        return gathered

    def _get(self, key: str) -> Any:
        self.store.wait([key], _LONGEST_WAIT)
        return json.loads(self.store.get(key))


def find_ranks() -> Rendezvous:
    """Return the rendezvous that torchrun's environment variables describe; without them, that of a single rank."""
    if "RANK" not in os.environ:
        return Rendezvous(rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    store, rank, world_size = next(rendezvous("env://"))
    return Rendezvous(rank=rank, world_size=world_size, store=store)


def shared_tally(store: Store, name: str) -> Callable[[int], int]:
    """Return what adds to the number `name`, which begins at 0, and returns it.

    Where the store is gone, as at the end of a job whose first rank has ended, it returns 0.
    """

    def add(change: int) -> int:
        try:
            return int(store.add(name, change))
        except RuntimeError:  # `DistNetworkError` is one
            return 0

    return add


def job_tally(name: str) -> Callable[[int], int]:
    """Return the tally of this job, in the store of `torch.distributed`; alone where there is none."""
    is_shared = dist.is_available() and dist.is_initialized()
    store = dist.distributed_c10d._get_default_store() if is_shared else None
    return shared_tally(store or dist.HashStore(), name)  # type: ignore[attr-defined]
