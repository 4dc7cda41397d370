"""What software launches by itself that the operator graph has in one kernel: softmax in steps, dropout of the stream.

The operator graph has one kernel that scales, masks and takes the softmax; where Megatron's cannot run, single ones do
it in fp32. It has no dropout of what attention and MLP add to the residual stream.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from kareus.graph.records import BlockGraph, Operator, Segment
from kareus.model.precision import BF16_BYTES
from kareus.workload.memory import MASK_BYTES

SINGLE_KERNELS, SINGLE_TRAFFIC = 6, 5
"""Kernels of a softmax that is not fused (cast, scale, mask, softmax, cast) and their traffic over that of one: each of
them reads and writes scores in fp32."""

Change = Callable[[Operator], Operator]


def in_single_kernels(graph: BlockGraph) -> BlockGraph:
    """Return the graph with a softmax that is not fused."""
    return _changed(graph, "softmax", _in_single_kernels, _in_single_kernels)


def with_stream_dropout(graph: BlockGraph) -> BlockGraph:
    """Return the graph with dropout before each residual addition.

    The addition applies it and writes a byte for each value; its gradient is a kernel that reads gradient and mask.
    """
    return _changed(graph, "norm", _with_mask, _with_gradient_of_dropout)


def _in_single_kernels(softmax: Operator) -> Operator:
    return replace(
        softmax,
        kernels=SINGLE_KERNELS * softmax.kernels,
        bytes_read=SINGLE_TRAFFIC * softmax.bytes_read,
        bytes_written=SINGLE_TRAFFIC * softmax.bytes_written,
    )


def _with_mask(norm: Operator) -> Operator:
    return replace(norm, bytes_written=norm.bytes_written + MASK_BYTES * math.prod(norm.shape))


def _with_gradient_of_dropout(norm: Operator) -> Operator:
    values = math.prod(norm.shape)
    return replace(
        norm,
        kernels=norm.kernels + 1,
        bytes_read=norm.bytes_read + (BF16_BYTES + MASK_BYTES) * values,
        bytes_written=norm.bytes_written + BF16_BYTES * values,
    )


def _changed(graph: BlockGraph, name: str, forward: Change, backward: Change) -> BlockGraph:
    """Return the graph with other operators of a name; a backward that recomputes takes them from the forward."""
    return replace(
        graph,
        forward=tuple(_with(segment, name, forward) for segment in graph.forward),
        backward=tuple(_with(segment, name, backward) for segment in graph.backward),
    )


def _with(segment: Segment, name: str, change: Change) -> Segment:
    return replace(segment, operators=tuple(change(o) if o.name == name else o for o in segment.operators))
