"""Collectives of hidden states whose tokens the GPUs of a group share: of each sequence by itself, in one launch.

Hidden states are [batch, tokens, hidden], and a GPU holds consecutive tokens of every sequence. Gathered sequence by
sequence they are in order, and nothing has to be copied, which one gather of all of them would demand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kareus.model.communication import Handle, Tensors


@dataclass(frozen=True, slots=True)
class Whole:
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
        wholes = tuple([s.new_empty(s.shape[0], self.size * s.shape[1], *s.shape[2:]) for s in shards])
        targets = [target for whole in wholes for target in whole.unbind()]
        return Whole(self.all_gather([s for shard in shards for s in shard.unbind()], sm_count, targets), wholes)

    def scatter_tokens(self, wholes: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """As `Communicator.scatter_tokens`."""
        shards = tuple([w.new_empty(w.shape[0], w.shape[1] // self.size, *w.shape[2:]) for w in wholes])
        targets = [target for shard in shards for target in shard.unbind()]
        return Whole(self.reduce_scatter([s for whole in wholes for s in whole.unbind()], sm_count, targets), shards)
