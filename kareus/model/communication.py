"""Interfaces of communication: a communicator for each axis, and boundaries at which tensors cross to other GPUs.

A communicator of None is a group of one GPU: its collectives do not exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from kareus.graph.records import CollectiveKind

SUM = dist.ReduceOp.SUM

Tensors = tuple[Tensor, ...]


class Handle(Protocol):
    """A collective that was launched."""

    def wait(self) -> Tensors:
        """Make later computation wait for the results, and return them."""


class Communicator(Protocol):
    """Collectives among the GPUs of one axis; several tensors at once go in one launch where the library can.

    `sm_count` is what the collective may take of the SMs; None leaves it to the library, and so do CPUs. Tensors are
    contiguous; every GPU launches the same collectives in the same order.
    """

    @property
    def axis(self) -> str:
        """`tp` or `cp`."""

    @property
    def size(self) -> int:
        """GPUs in the group."""

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""

    def all_reduce(self, tensors: Sequence[Tensor], sm_count: int | None = None, operation: Any = SUM) -> Handle:
        """Reduce each tensor over the group, in place."""

    def all_gather(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """Collect the tensors of all ranks, each [size, *shape]."""

    def reduce_scatter(self, tensors: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """Sum each tensor, [size, *shape], over the ranks and return this rank's part, [*shape]."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes that one block communicates along."""

    tp: Communicator | None = None
    """GPUs that share every layer's weights."""
    cp: Communicator | None = None
    """GPUs that share every sequence."""


def group_size(communicator: Communicator | None) -> int:
    """Number of GPUs in a group."""
    return 1 if communicator is None else communicator.size


def group_rank(communicator: Communicator | None) -> int:
    """Place of this process in a group."""
    return 0 if communicator is None else communicator.rank


def launch(
    kind: CollectiveKind, communicator: Communicator, tensors: Sequence[Tensor], sm_count: int | None = None
) -> Handle:
    """Launch a collective of `kind`."""
    if kind is CollectiveKind.ALL_REDUCE:
        return communicator.all_reduce(tensors, sm_count)
    if kind is CollectiveKind.ALL_GATHER:
        return communicator.all_gather(tensors, sm_count)
    return communicator.reduce_scatter(tensors, sm_count)


def all_reduce(tensor: Tensor, communicator: Communicator | None, operation: Any = SUM) -> None:
    """Reduce `tensor` in place over the GPUs of `communicator`, and wait for the result."""
    if communicator is not None:
        communicator.all_reduce((tensor,), operation=operation).wait()


@dataclass(frozen=True, slots=True)
class Boundary:
    """Passage of an operator's tensors to and from the GPUs that it shares them with."""

    communicator: Communicator
    forward: CollectiveKind | None
    backward: CollectiveKind | None
    first: int = 0
    """Place of the first of the operator's tensors that passes; all after it pass too."""

    def cross(self, tensors: Sequence[Tensor]) -> Tensors:
        """Pass `tensors` and wait; backward passes their gradients."""
        crossed: Tensors = _Cross.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return crossed

    def collect(self, tensors: Sequence[Tensor]) -> Tensors:
        """Pass `tensors` forward and wait, outside of autograd."""
        return _exchanged(self.forward, self.communicator, tensors)


def entering(communicator: Communicator | None) -> Boundary | None:
    """Into a tensor-parallel region: identity forward, all-reduce of the gradient backward (Megatron-LM's f)."""
    return Boundary(communicator, None, CollectiveKind.ALL_REDUCE) if communicator else None


def leaving(communicator: Communicator | None) -> Boundary | None:
    """Out of a tensor-parallel region: all-reduce forward, in place, identity backward (Megatron-LM's g)."""
    return Boundary(communicator, CollectiveKind.ALL_REDUCE, None) if communicator else None


class _Cross(Function):
    @staticmethod
    def forward(ctx: Any, boundary: Boundary, *tensors: Tensor) -> Tensors:
        ctx.boundary = boundary
        if boundary.forward is None:
            return tuple(t.view_as(t) for t in tensors)
        if boundary.forward is CollectiveKind.ALL_REDUCE:
            ctx.mark_dirty(*tensors)
        return _exchanged(boundary.forward, boundary.communicator, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradients = tuple(g.contiguous() for g in gradients)
        return None, *_exchanged(ctx.boundary.backward, ctx.boundary.communicator, gradients)


def _exchanged(kind: CollectiveKind | None, communicator: Communicator, tensors: Sequence[Tensor]) -> Tensors:
    return tuple(tensors) if kind is None else launch(kind, communicator, tensors).wait()
