"""Collectives of a program on real GPUs: those that training launches, of messages that nobody reads.

A collective starts when what was launched before it has ended, and runs concurrently with what is launched after it;
waiting for its handle delays further computation until it has ended. Collectives that the graph
has fused are one launch with a message for each of them, or one for each of them and each sequence, where tokens are
gathered sequence by sequence.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from kareus.graph.records import Collective, CollectiveKind, SequenceCollective
from kareus.model.communication import Communicator, Handle
from kareus.model.communicators.choice import Library, make_communicator
from kareus.model.communicators.mscclpp import MscclppCommunicator
from kareus.model.communicators.nccl import NcclCommunicator
from kareus.testbed.cuda.scratch import DTYPE, OPERAND_SEED


class Starter(Protocol):
    """Starts a collective that was prepared."""

    def __call__(self) -> Handle:
        """Start the collective, concurrently with what is launched afterwards."""


class Collectives:
    """Prepares collectives, with a communicator for each axis."""

    def __init__(self, library: Library, axes: Mapping[str, int], rank: int, device: torch.device) -> None:
        """Communicate as `rank` among all that `axes` (name and size) lays out, the first fastest; none if alone."""
        self._library = library
        self._axes = axes
        self._rank = rank
        self._device = device
        self._communicators: dict[tuple[str, int], Communicator] = {}
        self._scratch_bytes: dict[tuple[str, int], int] = {}
        """Largest message that the communicator of an axis can copy through its buffer, where it has one."""

    def prepare(self, collective: Collective, sm_count: int) -> Starter:
        """Allocate what `collective` sends from `sm_count` SMs. Every rank prepares the same, in the same order.

        Raises:
            EngineError: the library is missing, or the environment overrules SM counts.
        """
        communicator = self._communicator(collective)
        launching: Communicator = communicator
        if isinstance(communicator, MscclppCommunicator) and collective.kind is CollectiveKind.REDUCE_SCATTER:
            launching = communicator.others
        if isinstance(launching, NcclCommunicator):
            launching.prepare((sm_count,))  # which takes seconds, not to be timed
        elements = collective.message_bytes // DTYPE.itemsize // collective.fused
        share = elements // collective.group_size
        if collective.kind is CollectiveKind.ALL_REDUCE:
            return partial(communicator.all_reduce, self._messages(collective, elements), sm_count, self._operation())
        gathers = collective.kind is CollectiveKind.ALL_GATHER
        messages = self._messages(collective, share if gathers else share * collective.group_size)
        if isinstance(collective, SequenceCollective):
            by_sequence = tuple(message.view(collective.sequences, -1) for message in messages)
            launch = communicator.gather_tokens if gathers else communicator.scatter_tokens
            return partial(launch, by_sequence, sm_count)
        if gathers:
            return partial(communicator.all_gather, messages, sm_count)
        by_rank = tuple(message.view(collective.group_size, share) for message in messages)
        return partial(communicator.reduce_scatter, by_rank, sm_count)

    def _messages(self, collective: Collective, elements: int) -> tuple[torch.Tensor, ...]:
        """Messages of the collectives that are one launch."""
        return tuple(self._message(elements) for _ in range(collective.fused))

    def _operation(self) -> Any:
        """Return a reduction that costs what a sum costs, and never overflows however often its result is reduced."""
        if self._library is Library.MSCCLPP:
            return dist.ReduceOp.MIN  # MSCCL++ has no mean
        return dist.ReduceOp.AVG if self._device.type == "cuda" else dist.ReduceOp.MAX

    def _message(self, elements: int) -> torch.Tensor:
        """Random numbers, as power depends on the bits that flip; the same on all ranks, so that a mean keeps them."""
        generator = torch.Generator(self._device).manual_seed(OPERAND_SEED)
        return torch.empty(elements, dtype=DTYPE, device=self._device).normal_(generator=generator)

    def _communicator(self, collective: Collective) -> Communicator:
        key = axis, size = collective.group, collective.group_size
        largest = self._scratch_bytes.get(key, 0)
        if key not in self._communicators or (self._library is Library.MSCCLPP and collective.message_bytes > largest):
            ranks = _line(self._axes, axis, self._rank) if self._axes else range(size)
            made = make_communicator(self._library, axis, ranks, scratch_bytes=collective.message_bytes)
            assert made is not None, "a group of one has no collectives"
            self._communicators[key], self._scratch_bytes[key] = made, collective.message_bytes
        return self._communicators[key]


def _line(axes: Mapping[str, int], axis: str, rank: int) -> range:
    """Ranks that differ from `rank` in their place along `axis` only."""
    stride = math.prod(axes[name] for name in list(axes)[: list(axes).index(axis)])
    first = rank - rank // stride % axes[axis] * stride
    return range(first, first + axes[axis] * stride, stride)
