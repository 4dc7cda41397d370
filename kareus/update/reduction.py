"""Gradient reduction beside the last backward: which gradients are complete when, and what their reduction adds.

Weight gradients are reduced in buckets, one for each block, and one each for the head and the embedding, in the order
in which the last backward completes them. One bucket is reduced at a time, beside the backward for as long as that
runs; meanwhile both are slower. What that adds to the backward, and what is left to reduce at its end, is the time of
the instruction `gradient-reduction`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kareus.graph.interleave import block_passes
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction, Scope, Segment
from kareus.profile.programs import StageShape, outer_segments

ROUNDING = 1e-12
"""Share of the backward by which sums of its parts may differ."""


class Bucket(NamedTuple):
    """Gradients that are reduced at once."""

    scope: Scope
    """Part of the model whose gradients they are: one block, the embedding or the head."""
    ready: float
    """Share of the backward, from 0 to 1, after which they are complete."""


class Slowdown(NamedTuple):
    """Factors by which a backward and a reduction take longer beside each other than alone."""

    backward: float
    reduction: float


ALONE = Slowdown(1.0, 1.0)
"""Of passes and collectives that do not slow each other."""


def buckets_of(
    graph: BlockGraph, shape: StageShape, seconds: Mapping[Segment, float], *, recomputation: Recomputation
) -> tuple[Bucket, ...]:
    """Return the buckets of a chunk in the order in which its backward completes them.

    A tied embedding that is on the same stage as the head is complete with the embedding's backward.

    Args:
        graph: operator graph of a block.
        shape: what of the model the chunk holds.
        seconds: what each segment of a backward takes; only proportions count.
        recomputation: what the backward recomputes.
    """
    outer = outer_segments(graph, shape, Direction.BACKWARD, recomputation=recomputation)
    passes = block_passes(graph, shape.layers, Direction.BACKWARD, recomputation=recomputation, dense=shape.dense)
    head, embedding = ([s for s in outer if s.scope is scope] for scope in (Scope.HEAD, Scope.EMBEDDING))
    done_s, buckets = sum(seconds[s] for s in head), []
    if shape.last:
        buckets.append((Scope.HEAD, done_s))
    for segments in passes:
        done_s += sum(seconds[segment] for segment in segments)
        if segments[-1].direction is Direction.BACKWARD:
            buckets.append((segments[-1].scope, done_s))
    done_s += sum(seconds[s] for s in embedding)
    if shape.first:
        buckets.append((Scope.EMBEDDING, done_s))
    return tuple(Bucket(scope, at_s / done_s) for scope, at_s in buckets)


def even_buckets(shape: StageShape) -> tuple[Bucket, ...]:
    """Return the buckets of a chunk as `buckets_of`, as if head and blocks took the same time each."""
    blocks = [*[Scope.BLOCK] * (shape.layers - shape.dense), *[Scope.DENSE_BLOCK] * shape.dense]
    scopes = [*[Scope.HEAD] * shape.last, *blocks]
    buckets = [Bucket(scope, (n + 1) / len(scopes)) for n, scope in enumerate(scopes)]
    return (*buckets, *[Bucket(Scope.EMBEDDING, 1.0)] * shape.first)


def stage_buckets(
    stages: int, chunks: Sequence[Sequence[Bucket]], passes_s: Sequence[float]
) -> list[tuple[Scope, float]]:
    """Return the buckets of a stage with the times at which they are complete, from when its last backwards begin.

    With several chunks the last backwards of the chunks follow each other from the last chunk to the first, and between
    two of them as many backwards run as there are stages.

    Args:
        stages: of the pipeline.
        chunks: buckets of each chunk.
        passes_s: time of the backward of each chunk.
    """
    buckets: list[tuple[Scope, float]] = []
    before_s = 0.0
    for chunk in reversed(range(len(chunks))):
        if chunk < len(chunks) - 1:
            before_s += (stages - 1) * passes_s[chunk]
        buckets += [(scope, before_s + ready * passes_s[chunk]) for scope, ready in chunks[chunk]]
        before_s += passes_s[chunk]
    return buckets


def window_s(stages: int, passes_s: Sequence[float]) -> float:
    """Return the time from the beginning of the last backward of a stage's last chunk to the end of its first's."""
    return passes_s[-1] + stages * sum(passes_s[:-1])


def added_time_s(
    backward_s: float, ready_s: Sequence[float], reduction_s: Sequence[float], slowdown: Slowdown
) -> float:
    """Return the time that reducing buckets adds to the backward that completes them.

    Args:
        backward_s: of the backward alone.
        ready_s: time of the backward alone after which each bucket is complete, ascending.
        reduction_s: time of the reduction of each bucket alone.
        slowdown: of the two beside each other.
    """
    now_s = done_s = 0.0  # `done_s` of the backward is done
    for at_s, left_s in zip(ready_s, reduction_s, strict=True):
        if at_s > done_s:  # nothing to reduce until then
            now_s, done_s = now_s + at_s - done_s, at_s
        beside_s = min(left_s * slowdown.reduction, max(backward_s - done_s, 0.0) * slowdown.backward)
        done_s += beside_s / slowdown.backward
        if backward_s - done_s < ROUNDING * backward_s:
            done_s = backward_s
        now_s += beside_s + left_s - beside_s / slowdown.reduction
    return now_s + backward_s - done_s - backward_s
