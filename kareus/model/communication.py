"""Interfaces of communication: a communicator for each axis, and boundaries at which tensors cross to other GPUs.

A communicator of None is a group of one GPU: its collectives do not exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Handle:
        """Collect the tensors of all ranks, each [size, *shape] in new memory, or joined, [size n, ...], in `into`."""

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Handle:
        """Sum each tensor, [size, *shape], over the ranks; return this rank's part, [*shape], in new memory.

        With `into`, [n, ...], which takes the parts, tensors are joined, [size n, ...].
        """

    def all_to_all(
        self, rows: Tensor, sends: Sequence[int], receives: Sequence[int], sm_count: int | None = None
    ) -> Handle:
        """Send each rank its rows, [sum of sends, ...] in the order of ranks; return those received, in that order.

        `sends` and `receives` are numbers of rows, by rank.
        """

    def gather_tokens(self, shards: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """Collect the tokens of all ranks, [batch, tokens, ...], each rank's after those of the rank before."""

    def scatter_tokens(self, wholes: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """Sum each tensor, [batch, tokens, ...], over the ranks; this rank's tokens, as `gather_tokens` takes them."""


CollectiveLaunch = Callable[[Sequence[Any], int | None], Handle]
"""Launches a collective of tensors on a number of SMs; an all-to-all of rows, and how many go to and come from each
rank."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes that one block communicates along."""

    tp: Communicator | None = None
    """GPUs that share every layer's weights."""
    cp: Communicator | None = None
    """GPUs that share every sequence."""
    sequence_parallel: bool = False
    """Whether the GPUs of `tp` share the tokens of hidden states between matrix products."""
    ep: Communicator | None = None
    """GPUs that share out the experts of a block."""
    counts: Communicator | None = None
    """The same GPUs, which tell each other how many tokens they will send: a group of its own, so that what two
    nanobatches exchange does not hold up the numbers."""


def group_size(communicator: Communicator | None) -> int:
    """Number of GPUs in a group."""
    return 1 if communicator is None else communicator.size


def group_rank(communicator: Communicator | None) -> int:
    """Place of this process in a group."""
    return 0 if communicator is None else communicator.rank


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a boundary."""

    kind: CollectiveKind
    communicator: Communicator
    by_sequence: bool = False
    """Whether it gathers or scatters the tokens of each sequence, [batch, tokens, hidden], and no new dimension."""

    launch: CollectiveLaunch = field(init=False)
    """Launches it; looked up once, since it is launched thousands of times an iteration."""

    def __post_init__(self) -> None:
        """Look up what launches it."""
        communicator, by_sequence = self.communicator, self.by_sequence
        launches: dict[CollectiveKind, CollectiveLaunch] = {
            CollectiveKind.ALL_REDUCE: communicator.all_reduce,
            CollectiveKind.ALL_GATHER: communicator.gather_tokens if by_sequence else communicator.all_gather,
            CollectiveKind.REDUCE_SCATTER: communicator.scatter_tokens if by_sequence else communicator.reduce_scatter,
            CollectiveKind.ALL_TO_ALL: self._exchange_rows,
        }
        object.__setattr__(self, "launch", launches[self.kind])

    def _exchange_rows(self, given: Sequence[Any], sm_count: int | None) -> Handle:
        rows, sends, receives = given
        return self.communicator.all_to_all(rows, sends, receives, sm_count)


def all_reduce(tensor: Tensor, communicator: Communicator | None, operation: Any = SUM) -> None:
    """Reduce `tensor` in place over the GPUs of `communicator`, and wait for the result."""
    if communicator is not None:
        communicator.all_reduce((tensor,), operation=operation).wait()


class Kept:
    """A shard of what a matrix product read, gathered once more for the gradient of its weight.

    It is gathered together with the gradient of what the product's sublayer puts out, at the start of its backward.
    """

    def __init__(self, shard: Tensor) -> None:
        self.shard = shard
        self._whole: Tensors = ()

    def arrive(self, whole: Tensor) -> None:
        """Take what was gathered."""
        self._whole = (whole,)

    def take(self) -> Tensors:
        """Return it, once."""
        whole, self._whole = self._whole, ()
        return whole


@dataclass(frozen=True, slots=True)
class Boundary:
    """Passage of an operator's tensors to and from the GPUs that it shares them with."""

    communicator: Communicator
    forward: CollectiveKind | None
    backward: CollectiveKind | None
    first: int = 0
    """Place of the first of the operator's tensors that passes; all after it pass too."""
    by_token: bool = False
    """Whether tokens of hidden states are gathered and scattered (sequence parallelism)."""
    in_order: bool = True
    """Whether the gathered tokens of a sequence follow one another, [batch, tokens, hidden]; else those of each rank
    do, [size, batch, tokens, hidden], for which one collective is enough."""

    forwards: Exchange | None = field(init=False)
    """The collective of forward."""
    backwards: Exchange | None = field(init=False)
    """The collective of backward."""

    def __post_init__(self) -> None:
        """Make the collectives once."""
        for name, kind in (("forwards", self.forward), ("backwards", self.backward)):
            exchange = None if kind is None else Exchange(kind, self.communicator, self.by_token and self.in_order)
            object.__setattr__(self, name, exchange)

    def cross(self, tensors: Sequence[Tensor], kept: Kept | None = None) -> Tensors:
        """Pass `tensors` and wait; backward passes their gradients, and what was kept with them."""
        crossed: Tensors = _Cross.apply(self, kept, *tensors)  # type: ignore[no-untyped-call]
        return crossed

    def collect(self, tensors: Sequence[Tensor]) -> Tensors:
        """Pass `tensors` forward and wait, outside of autograd."""
        return _exchanged(self.forwards, tensors)


def entering(mesh: Mesh, *, in_order: bool = True) -> Boundary | None:
    """Into a tensor-parallel region: identity forward, all-reduce of the gradient backward (Megatron-LM's f).

    With sequence parallelism all-gather forward, reduce-scatter of the gradient backward (Korthikanti et al., MLSys
    2023, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.2); see `Boundary.in_order`.
    """
    if mesh.tp is None:
        return None
    if mesh.sequence_parallel:
        kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        return Boundary(mesh.tp, *kinds, by_token=True, in_order=in_order)
    return Boundary(mesh.tp, None, CollectiveKind.ALL_REDUCE)


def leaving(mesh: Mesh, *, in_order: bool = True) -> Boundary | None:
    """Out of a tensor-parallel region: all-reduce forward, in place, identity backward (Megatron-LM's g).

    With sequence parallelism reduce-scatter forward, all-gather of the gradient backward; see `Boundary.in_order`.
    """
    if mesh.tp is None:
        return None
    if mesh.sequence_parallel:
        kinds = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER
        return Boundary(mesh.tp, *kinds, by_token=True, in_order=in_order)
    return Boundary(mesh.tp, CollectiveKind.ALL_REDUCE, None)


def exchanging(mesh: Mesh) -> Boundary | None:
    """Copies of tokens to the GPUs of their experts, or results back to where these came from; gradients return."""
    if mesh.ep is None:
        return None
    return Boundary(mesh.ep, CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL)


class _Cross(Function):
    @staticmethod
    def forward(ctx: Any, boundary: Boundary, kept: Kept | None, *tensors: Tensor) -> Tensors:
        ctx.boundary, ctx.kept = boundary, kept
        if boundary.forward is None:
            return tuple(t.view_as(t) for t in tensors)
        if boundary.forward is CollectiveKind.ALL_REDUCE:
            ctx.mark_dirty(*tensors)
        return _exchanged(boundary.forwards, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passing = [g.contiguous() for g in gradients]
        if ctx.kept is not None:
            passing.append(ctx.kept.shard)
        crossed = _exchanged(ctx.boundary.backwards, passing)
        if ctx.kept is not None:
            ctx.kept.arrive(crossed[-1])
        return None, None, *crossed[: len(gradients)]


def _exchanged(exchange: Exchange | None, tensors: Sequence[Tensor]) -> Tensors:
    return tuple(tensors) if exchange is None else exchange.launch(tensors, None).wait()
