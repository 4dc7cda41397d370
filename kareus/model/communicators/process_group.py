"""Collectives of a torch process group: gloo on CPUs, the fake one for tracing, and what NCCL builds on.

Work handles are asynchronous: on CPUs a thread of gloo communicates while this one computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from kareus.model.communication import SUM, Tensors
from kareus.model.communicators.tokens import TokenCollectives

# torch 2.13 renamed these two and warns about the old names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(slots=True)  # one is made for every launch; a frozen one takes the host longer
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
    """A `Communicator` over one process group; leaves SMs to the group.

    It calls the group itself: the functions of `torch.distributed` around it check anew what is the same for every
    launch, and take the host three times as long where several tensors go in one launch.
    """

    axis: str
    group: dist.ProcessGroup
    size: int = field(init=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.group.size())
        object.__setattr__(self, "rank", self.group.rank())

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Works:
        """As `Communicator.all_reduce`."""
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = operation
        return Works([self.group.allreduce_coalesced(list(tensors), options)], tuple(tensors))

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.all_gather`."""
        results = tuple([t.new_empty(self.size, *t.shape) for t in tensors] if into is None else into)
        joined = [r.flatten(0, 1) for r in results] if into is None else list(results)
        return Works([self.group.allgather_into_tensor_coalesced(joined, list(tensors))], results, tensors)

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Works:
        """As `Communicator.reduce_scatter`."""
        parts = tuple([t.new_empty(t.shape[1:]) for t in tensors] if into is None else into)
        joined = [t.flatten(0, 1) for t in tensors] if into is None else list(tensors)
        return Works([self.group.reduce_scatter_tensor_coalesced(list(parts), joined)], parts, tensors)

    def all_to_all(
        self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], sm_count: int | None = None
    ) -> Works:
        """As `Communicator.all_to_all`."""
        received = rows.new_empty(sum(receives), *rows.shape[1:])
        work = self.group.alltoall_base(received, rows, list(receives), list(sends), dist.AllToAllOptions())
        return Works([work], (received,), (rows,))
