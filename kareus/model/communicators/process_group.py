"""Collectives of a torch process group: gloo on CPUs, the fake one for tracing, and what NCCL builds on.

Work handles are asynchronous: on CPUs a thread of gloo communicates while this one computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from kareus.model.communication import SUM, Tensors

# torch 2.13 renamed these two and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


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
class ProcessGroupCommunicator:
    """A `Communicator` over one process group; leaves SMs to the group."""

    axis: str
    group: dist.ProcessGroup
    size: int = field(init=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.group.size())
        object.__setattr__(self, "rank", self.group.rank())

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Works:
        """As `Communicator.all_reduce`."""
        works = [dist.all_reduce(t, op=operation, group=self.group, async_op=True) for t in tensors]
        return Works(works, tuple(tensors))

    def all_gather(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> Works:
        """As `Communicator.all_gather`."""
        flat = [t.new_empty(self.size * t.shape[0], *t.shape[1:]) for t in tensors]
        works = [_all_gather(whole, t, group=self.group, async_op=True) for whole, t in zip(flat, tensors, strict=True)]
        results = tuple(whole.view(self.size, *t.shape) for whole, t in zip(flat, tensors, strict=True))
        return Works(works, results, tensors)

    def reduce_scatter(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> Works:
        """As `Communicator.reduce_scatter`."""
        parts = tuple(t.new_empty(t.shape[1:]) for t in tensors)
        works = [
            _reduce_scatter(part, t.flatten(0, 1), group=self.group, async_op=True)
            for part, t in zip(parts, tensors, strict=True)
        ]
        return Works(works, parts, tensors)
