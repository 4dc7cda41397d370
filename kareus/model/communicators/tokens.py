"""Collectives of hidden states whose tokens the GPUs of a group share: of each sequence by itself, in one launch.

Hidden states are [batch, tokens, hidden], and a GPU holds consecutive tokens of every sequence. Gathered sequence by
sequence they are in order, as attention has it, and nothing has to be copied, which one gather of all of them would
demand. What treats tokens alike needs no order, and gathers all at once (`Boundary.in_order`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from kareus.model.communication import Handle, Tensors


class Whole(NamedTuple):
    """Collectives of parts of tensors, and these tensors."""

    handle: Handle
    results: Tensors

    def wait(self) -> Tensors:
        """As `Handle.wait`."""
        self.handle.wait()
        return self.results


class TokenCollectives:
    """Base of communicators, on which the collectives of each sequence are built."""

    __slots__ = ()
    size: int

    def all_gather(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Handle:
        """As `Communicator.all_gather`."""
        raise NotImplementedError

    def reduce_scatter(
        self, tensors: Sequence[Tensor], sm_count: int | None = None, into: Sequence[Tensor] | None = None
    ) -> Handle:
        """As `Communicator.reduce_scatter`."""
        raise NotImplementedError

    def gather_tokens(self, shards: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """As `Communicator.gather_tokens`."""
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        wholes = []
        for shard in shards:
            batch, tokens, *rest = shard.shape
            whole = shard.new_empty((batch, self.size * tokens, *rest))
            sources += shard.unbind()
            targets += whole.unbind()
            wholes.append(whole)
        return Whole(self.all_gather(sources, sm_count, targets), tuple(wholes))

    def scatter_tokens(self, wholes: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """As `Communicator.scatter_tokens`."""
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        shards = []
        for whole in wholes:
            batch, tokens, *rest = whole.shape
            shard = whole.new_empty((batch, tokens // self.size, *rest))
            sources += whole.unbind()
            targets += shard.unbind()
            shards.append(shard)
        return Whole(self.reduce_scatter(sources, sm_count, targets), tuple(shards))
