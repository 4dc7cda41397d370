"""A number that all ranks of a job add to, in the store that they share: no rank waits for another."""

from collections.abc import Callable

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store


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
