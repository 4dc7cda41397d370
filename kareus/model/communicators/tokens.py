"""Collectives of hidden states whose tokens the GPUs of a group share: of each sequence by itself, in one launch.

Hidden states are [batch, tokens, hidden], and a GPU holds consecutive tokens of every sequence. Gathered sequence by
sequence they are in order, as attention has it, and nothing has to be copied, which one gather of all of them would
demand. What treats tokens alike needs no order, and gathers all at once (`Boundary.in_order`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from kareus.model.communication import Handle, Tensors


@dataclass(slots=True)  # one is made for every launch; a frozen one or a tuple takes the host longer
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
        wholes = tuple([_with_tokens(shard, shard.shape[1] * self.size) for shard in shards])
        return Whole(self.all_gather(_sequences(shards), sm_count, _sequences(wholes)), wholes)

    def scatter_tokens(self, wholes: Sequence[Tensor], sm_count: int | None = None) -> Handle:
        """As `Communicator.scatter_tokens`."""
        shards = tuple([_with_tokens(whole, whole.shape[1] // self.size) for whole in wholes])
        return Whole(self.reduce_scatter(_sequences(wholes), sm_count, _sequences(shards)), shards)


def _with_tokens(like: Tensor, tokens: int) -> Tensor:
    """Return memory for another number of tokens, [batch, tokens, ...]."""
    shape = list(like.shape)
    shape[1] = tokens
    return like.new_empty(shape)


def _sequences(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sequences of all tensors, each by itself."""
    return list(chain.from_iterable(map(Tensor.unbind, tensors)))
