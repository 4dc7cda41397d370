"""Collectives of a torch process group: gloo on CPUs, the fake one for tracing, and what NCCL builds on.

Work handles are asynchronous: on CPUs a thread of gloo communicates while this one computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from kareus.model.communication import SUM, Tensors
from kareus.model.communicators.tokens import TokenCollectives

# torch 2.13 renamed these two and warns about the old names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Works:
    """Works of torch, what they leave, and what they read, which has to live as long."""

    works: Sequence[dist.Work]
    results: Tensors
    sources: Sequence[Tensor] = ()

    def wait(self) -> Tensors:
        """As `Handle.wait`: the current stream waits on CUDA, this thread on CPUs."""
        for work in self.works:
            work.wait()
        return self.results


@dataclass(frozen=True, slots=True)
class ProcessGroupCommunicator(TokenCollectives):
    """A `Communicator` over one process group; leaves SMs to the group."""

    axis: str
    group: dist.ProcessGroup
    fuses: bool = False
    """Whether the backend can launch several collectives at once."""
    size: int = field(init=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.group.size())
        object.__setattr__(self, "rank", self.group.rank())

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Works:
        """As `Communicator.all_reduce`."""
        calls = [partial(dist.all_reduce, t, op=operation) for t in tensors]
        return Works(self._launched(calls), tuple(tensors))

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.all_gather`."""
        results = tuple([t.new_empty(self.size, *t.shape) for t in tensors] if into is None else into)
        joined = [r.flatten(0, 1) for r in results] if into is None else results
        calls = [partial(all_gather_single, r, t) for r, t in zip(joined, tensors, strict=True)]
        return Works(self._launched(calls), results, tensors)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.reduce_scatter`."""
        parts = tuple([t.new_empty(t.shape[1:]) for t in tensors] if into is None else into)
        joined = [t.flatten(0, 1) for t in tensors] if into is None else tensors
        calls = [partial(reduce_scatter_single, part, t) for part, t in zip(parts, joined, strict=True)]
        return Works(self._launched(calls), parts, tensors)

    def _launched(self, calls: Sequence[Callable[..., Any]]) -> list[dist.Work]:
        if self.fuses and len(calls) > 1:
            with _coalescing_manager(group=self.group, async_ops=True) as manager:
                for call in calls:
                    call(group=self.group, async_op=True)
            return list(manager.works)
        return [call(group=self.group, async_op=True) for call in calls]
