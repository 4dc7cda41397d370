"""Staggering two nanobatches: the one definition of which segments and collectives run concurrently.

Nanobatches A and B take turns, segment by segment: A.1 B.1 A.2 B.2 ... Each segment runs beside the
collective that the other nanobatch has just reached, and a collective in flight passes from block to
block. A backward that recomputes (of a split one, the input-gradient pass) is one such sequence, too: with
recomputation of the stage all its blocks forward again, from the stage's input, and then backward; with full
recomputation each block forward again and then backward. So a recomputed segment, too, runs beside what the
other nanobatch has just reached. The memory estimate assumes the same. Only the
first segment of an instruction and its last collective have no partner.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kareus.graph.recomputation import Recomputation, block_backward
from kareus.graph.records import RECOMPUTING, BlockGraph, Collective, Direction, Partition, Segment
from kareus.graph.split_backward import pass_segments


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment of one nanobatch and the collective that the other nanobatch has in flight meanwhile."""

    segment: Segment | None
    """None at the end of an instruction: the last collective runs alone."""
    collective: Collective | None
    """None at the start of an instruction, and where the other's last segment ended without a collective."""


def block_segments(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation
) -> list[Segment]:
    """Return the segments of one nanobatch through `layers` blocks of a stage, in the order of execution."""
    passes = block_passes(graph, layers, direction, recomputation=recomputation)
    return [segment for own in passes for segment in own]


def block_passes(
    graph: BlockGraph, layers: int, direction: Direction, *, recomputation: Recomputation
) -> list[tuple[Segment, ...]]:
    """Return the same by pass through one block: a block that is recomputed on its own is passed once."""
    own = pass_segments(graph.forward, block_backward(graph, recomputation), direction)
    if direction not in RECOMPUTING or not recomputation.repeats_blocks:
        return [own] * layers
    if recomputation is Recomputation.FULL:
        return [(*graph.forward, *own)] * layers
    return [graph.forward] * layers + [own] * layers


def interleave(segments: Sequence[Segment]) -> list[Pair]:
    """Return the pairs of two staggered nanobatches that both run `segments`."""
    pairs = []
    in_flight: Collective | None = None
    for segment in segments:
        for _ in range(2):
            pairs.append(Pair(segment, in_flight))
            in_flight = segment.collective
    if in_flight is not None:
        pairs.append(Pair(None, in_flight))
    return pairs


def partition_of(segment: Segment, collective: Collective) -> Partition:
    """Return the partition of `segment` and `collective`."""
    return Partition(
        name=f"{segment.direction}-{segment.name}-{collective.kind}",
        direction=segment.direction,
        operators=segment.operators,
        collective=collective,
    )
