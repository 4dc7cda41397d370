"""The mean block of a model whose blocks differ: its operator graph, from that of blocks that are alike.

All blocks of a model have one graph. Where some attend within a window, or the rotary embedding turns a part of each
head, operators have the work of the mean block, so that all blocks together have theirs.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from kareus.graph.records import BlockGraph, Operator, OperatorKind, Segment
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism

ATTENTION = (OperatorKind.ATTENTION, OperatorKind.ATTENTION_BACKWARD)
ROTATION = "rope"
"""Name of the operator that rotates."""


def as_mean_block(graph: BlockGraph, model: Model, parallelism: Parallelism, sequence_length: int) -> BlockGraph:
    """Return the graph of the mean block, from that of a block which attends to all tokens and rotates whole heads."""
    share = attended_share(model, sequence_length)
    in_place = not model.qk_norm and parallelism.cp == 1
    turning = Fraction(model.rotary_dim, model.head_dim) if in_place else Fraction(1)
    if share == 1 and turning == 1:
        return graph

    def forward(operator: Operator) -> Operator:
        if operator.name == ROTATION:
            read, written = (int(n * turning) for n in (operator.bytes_read, operator.bytes_written))
            return replace(operator, bytes_read=read, bytes_written=written)
        return _windowed(operator, share)

    return replace(
        graph,
        forward=_each(graph.forward, forward),
        backward=_each(graph.backward, lambda operator: _windowed(operator, share)),
    )


def attended_share(model: Model, sequence_length: int) -> Fraction:
    """Return the pairs of tokens that attend to each other, over those without windows, in the mean block."""
    pairs = model.twice_pairs(sequence_length)
    return Fraction(sum(pairs), len(pairs) * sequence_length**2)


def mean_window(share: Fraction, keys: int) -> int:
    """Return the window with which a block attends to this share of the pairs of `keys` tokens."""
    return max(round(keys * (1 - math.sqrt(1 - share))), 1)


def _windowed(operator: Operator, share: Fraction) -> Operator:
    if operator.kind not in ATTENTION or share == 1:
        return operator
    *_, keys, _ = operator.shape  # as `OperatorKind.ATTENTION` has it
    return replace(operator, shape=(*operator.shape, mean_window(share, keys)), flops=round(operator.flops * share))


def _each(segments: tuple[Segment, ...], change: Callable[[Operator], Operator]) -> tuple[Segment, ...]:
    return tuple(replace(segment, operators=tuple(map(change, segment.operators))) for segment in segments)
