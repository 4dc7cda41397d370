"""What software launches between the scores and the mixing of attention that is not fused.

The operator graph has one kernel that scales, masks and takes the softmax. Dropout is another: it reads and writes the
probabilities, and keeps a byte for each. Where Megatron's kernel cannot run, single ones do it in fp32.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from kareus.graph.records import BlockGraph, Operator
from kareus.model.precision import BF16_BYTES
from kareus.workload.memory import MASK_BYTES

SINGLE_KERNELS, SINGLE_TRAFFIC = 6, 5
"""Kernels of a softmax that is not fused (cast, scale, mask, softmax, cast) and their traffic over that of one: each of
them reads and writes scores in fp32."""


def with_dropout(graph: BlockGraph) -> BlockGraph:
    """Return the graph with dropout of attention's probabilities."""
    return _changed(graph, _with_dropout)


def in_single_kernels(graph: BlockGraph) -> BlockGraph:
    """Return the graph with a softmax that is not fused."""
    return _changed(graph, _in_single_kernels)


def _with_dropout(softmax: Operator) -> Operator:
    probabilities = math.prod(softmax.shape)
    probabilities_bytes, mask_bytes = BF16_BYTES * probabilities, MASK_BYTES * probabilities
    return replace(
        softmax,
        kernels=softmax.kernels + 1,
        bytes_read=softmax.bytes_read + probabilities_bytes,
        bytes_written=softmax.bytes_written + probabilities_bytes + mask_bytes,
    )


def _in_single_kernels(softmax: Operator) -> Operator:
    return replace(
        softmax,
        kernels=SINGLE_KERNELS * softmax.kernels,
        bytes_read=SINGLE_TRAFFIC * softmax.bytes_read,
        bytes_written=SINGLE_TRAFFIC * softmax.bytes_written,
    )


def _changed(graph: BlockGraph, change: Callable[[Operator], Operator]) -> BlockGraph:
    """Return the graph with other softmaxes in its blocks; a backward that recomputes takes them from the forward."""

    def segments(name: str) -> tuple[object, ...]:
        return tuple(
            replace(s, operators=tuple(change(o) if o.name.startswith("softmax") else o for o in s.operators))
            for s in getattr(graph, name)
        )

    return replace(graph, **{name: segments(name) for name in ("forward", "backward")})  # type: ignore[arg-type]
