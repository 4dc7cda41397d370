"""Staggering two nanobatches: the one definition of which segments and collectives run concurrently.

Nanobatches A and B take turns, segment by segment: A.1 B.1 A.2 B.2 ... Each segment runs beside the
collective that the other nanobatch has just reached, and a collective in flight passes from block to
block. A backward that recomputes (of a split one, the input-gradient pass) is one such sequence, too: with
recomputation of the stage all its blocks forward again, from the stage's input, and then backward; with full
recomputation each block forward again and then backward. So a recomputed segment, too, runs beside what the
other nanobatch has just reached. The memory estimate assumes the same. Only the
first segment of an instruction and its last collective have no partner.

With sequence parallelism a norm stands between a reduce-scatter and an all-gather, too short to hide either, and
what is between an all-gather and a reduce-scatter is cut in two. A is one segment ahead there: A.1 A.2 B.1 A.3 B.2 ...
In the steady state norms run alone, the first part of a sublayer beside the other nanobatch's reduce-scatter, and the
second part beside its all-gather. A's first all-gather has no partner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kareus.graph.recomputation import Recomputation, block_backward
from kareus.graph.records import (
    RECOMPUTING,
    TENSOR_PARALLEL,
    BlockGraph,
    Collective,
    CollectiveKind,
    Direction,
    Partition,
    Segment,
)
from kareus.graph.split_backward import pass_segments


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment of one nanobatch and the collective that the other nanobatch has in flight meanwhile."""

    nanobatch: int
    """0 or 1: that of the segment; of a collective that runs alone, its own."""
    segment: Segment | None
    """None where a collective runs alone, as the last one of an instruction."""
    ended: Segment | None
    """The segment that the collective ends; None at the start of an instruction, and where the other nanobatch's last
    segment ended without a collective."""

    @property
    def collective(self) -> Collective | None:
        """The collective; None where the segment runs alone."""
        return self.ended.collective if self.ended else None


def block_segments(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation, dense: int = 0
) -> list[Segment]:
    """Return the segments of one nanobatch through `layers` blocks of a stage, in the order of execution."""
    passes = block_passes(graph, layers, direction, recomputation=recomputation, dense=dense)
    return [segment for own in passes for segment in own]


def block_passes(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation, dense: int = 0
) -> list[tuple[Segment, ...]]:
    """Return the same by pass through one block: a block that is recomputed on its own is passed once.

    Of a mixture of experts, `dense` of the blocks have none; they are taken as the first, wherever among the blocks of
    the stage they are.
    """
    forwards, passes = _passes(graph, layers - dense, direction, recomputation)
    if dense:
        plain = replace(graph, forward=graph.dense_forward, backward=graph.dense_backward)
        first_forwards, first = _passes(plain, dense, direction, recomputation)
        forwards = first_forwards + forwards
        passes = first + passes if direction is Direction.FORWARD else passes + first
    return forwards + passes


def _passes(
    graph: BlockGraph, layers: int, direction: Direction, recomputation: Recomputation
) -> tuple[list[tuple[Segment, ...]], list[tuple[Segment, ...]]]:
    """Return the forwards that a pass through equal blocks begins with, and what follows."""
    own = pass_segments(graph.forward, block_backward(graph, recomputation), direction)
    if direction not in RECOMPUTING or not recomputation.repeats_blocks:
        return [], [own] * layers
    if recomputation is Recomputation.FULL:
        return [], [(*graph.forward, *own)] * layers
    return [graph.forward] * layers, [own] * layers


def interleave(segments: Sequence[Segment]) -> list[Pair]:
    """Return the pairs of two staggered nanobatches that both run `segments`."""
    pairs = []
    in_flight: list[Segment | None] = [None, None]
    for nanobatch, segment in _turns(segments):
        other = 1 - nanobatch
        if in_flight[nanobatch] is not None:  # its results are needed now
            pairs.append(Pair(nanobatch, None, in_flight[nanobatch]))
        pairs.append(Pair(nanobatch, segment, in_flight[other]))
        in_flight[other] = None
        in_flight[nanobatch] = segment if segment.collective is not None else None
    return pairs + [Pair(nanobatch, None, ended) for nanobatch, ended in enumerate(in_flight) if ended is not None]


def partition_of(segment: Segment, collective: Collective) -> Partition:
    """Return the partition of `segment` and `collective`."""
    return Partition(
        name=f"{segment.direction}-{segment.name}-{collective.label}",
        direction=segment.direction,
        operators=segment.operators,
        collective=collective,
    )


def _turns(segments: Sequence[Segment]) -> Iterator[tuple[int, Segment]]:
    """Yield a nanobatch and its next segment, in the order of execution."""
    ahead = 1 if any(_gathers_tokens(segment) for segment in segments) else 0
    for place in range(len(segments) + ahead):
        if place < len(segments):
            yield 0, segments[place]
        if place >= ahead:
            yield 1, segments[place - ahead]


def _gathers_tokens(segment: Segment) -> bool:
    collective = segment.collective
    if collective is None or collective.group != TENSOR_PARALLEL:
        return False
    return collective.kind is CollectiveKind.ALL_GATHER
