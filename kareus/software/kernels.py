"""What software launches by itself that the operator graph has in one kernel, or has not: softmax, dropout, fp8 casts.

The operator graph has one kernel that scales, masks and takes the softmax; where Megatron's cannot run, single ones do
it in fp32. It has no dropout of what attention and MLP add to the residual stream, and its products are in bf16. In
fp8, as Transformer Engine runs it, operands of the three products of a projection are cast once each, together with a
transposed copy: the input by the forward, the gradient of the output by the backward. Weights are cast once an
iteration, with its update. The head, attention and sums of weight gradients stay in more bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from kareus.graph.records import BlockGraph, Fp8Product, Operator, OperatorKind, Segment
from kareus.model.config import Model, Parallelism
from kareus.model.precision import BF16_BYTES, FP32_BYTES, Precision
from kareus.software.record import Software

MASK_BYTES = 1
"""Bytes of a value of a dropout's mask."""
SINGLE_KERNELS, SINGLE_TRAFFIC = 6, 5
"""Kernels of a softmax that is not fused (cast, scale, mask, softmax, cast) and their traffic over that of one: each of
them reads and writes scores in fp32."""
CAST_BYTES = 4
"""Bytes of casting a value: 16 bits are read, 8 bits are written twice, one of them transposed."""

ROUTER = "router"
"""Begins the names of a router's products, which stay in more bits."""

Change = Callable[[Operator], Operator]


def of_software(
    graph: BlockGraph, software: Software, precision: Precision, model: Model, parallelism: Parallelism, batch: int
) -> BlockGraph:
    """Return an operator graph with the kernels of a software.

    Args:
        graph: as extracted, with the software's kernel of attention.
        software: that launches it.
        precision: of the products of its blocks.
        model: that the graph is of.
        parallelism: its layout.
        batch: sequences of a pass.
    """
    heads = batch * model.num_attention_heads // parallelism.tp
    if not software.fused_attention and heads % software.softmax_multiple:
        graph = _changed(graph, _named("softmax", _in_single_kernels), _named("softmax", _in_single_kernels))
    if software.stream_dropout:
        graph = _changed(graph, _named("norm", _with_mask), _named("norm", _with_gradient_of_dropout))
    if software.fp32_logits:
        graph = replace(
            graph,
            head_forward=_all(graph.head_forward, _named("loss", _of_cast_logits)),
            head_backward=_all(graph.head_backward, _named("loss", _of_cast_logits)),
        )
    if not software.fused_accumulation:
        graph = replace(
            graph,
            backward=_all(graph.backward, _accumulated),
            dense_backward=_all(graph.dense_backward, _accumulated),
            head_backward=_all(graph.head_backward, _accumulated),
            embedding_backward=_all(graph.embedding_backward, _accumulated),
        )
    return _changed(graph, _in_fp8, _in_fp8) if precision is Precision.FP8 else graph


def _changed(graph: BlockGraph, forward: Change, backward: Change) -> BlockGraph:
    """Return the graph with other operators in its blocks; a backward that recomputes takes them from the forward."""
    return replace(
        graph,
        forward=_all(graph.forward, forward),
        backward=_all(graph.backward, backward),
        dense_forward=_all(graph.dense_forward, forward),
        dense_backward=_all(graph.dense_backward, backward),
    )


def _all(segments: Sequence[Segment], change: Change) -> tuple[Segment, ...]:
    return tuple(_with(segment, change) for segment in segments)


def _with(segment: Segment, change: Change) -> Segment:
    return replace(segment, operators=tuple(map(change, segment.operators)))


def _named(name: str, change: Change) -> Change:
    """Return a change of the operators of a name alone."""
    return lambda operator: change(operator) if operator.name == name else operator


def _in_single_kernels(softmax: Operator) -> Operator:
    return replace(
        softmax,
        kernels=SINGLE_KERNELS * softmax.kernels,
        bytes_read=SINGLE_TRAFFIC * softmax.bytes_read,
        bytes_written=SINGLE_TRAFFIC * softmax.bytes_written,
    )


def _with_mask(norm: Operator) -> Operator:
    """A residual addition that applies dropout writes a byte for each value."""
    return replace(norm, bytes_written=norm.bytes_written + MASK_BYTES * math.prod(norm.shape))


def _with_gradient_of_dropout(norm: Operator) -> Operator:
    """The gradient of dropout is a kernel that reads gradient and mask."""
    values = math.prod(norm.shape)
    return replace(
        norm,
        kernels=norm.kernels + 1,
        bytes_read=norm.bytes_read + (BF16_BYTES + MASK_BYTES) * values,
        bytes_written=norm.bytes_written + BF16_BYTES * values,
    )


def _of_cast_logits(loss: Operator) -> Operator:
    """The loss works on logits of 32 bits, which are cast before its forward, and their gradient after its backward."""
    logits = max(loss.bytes_read, loss.bytes_written) // BF16_BYTES
    more, writes_gradient = (FP32_BYTES - BF16_BYTES) * logits, loss.bytes_written >= BF16_BYTES * logits
    return replace(
        loss,
        bytes_read=loss.bytes_read + more,
        bytes_written=loss.bytes_written + (more if writes_gradient else 0),
        copies=loss.copies + 1,
        copied_bytes=loss.copied_bytes + (BF16_BYTES + FP32_BYTES) * logits,
    )


def _accumulated(operator: Operator) -> Operator:
    """A product that is a weight gradient writes 16 bits; a kernel reads these and the sum, and writes the sum."""
    if not operator.is_weight_gradient or operator.kind not in (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM):
        return operator
    grouped = operator.kind is OperatorKind.GROUPED_GEMM
    weights = operator.bytes_written // FP32_BYTES if grouped else operator.shape[0] * operator.shape[1]
    return replace(
        operator,
        bytes_read=operator.bytes_read - FP32_BYTES * weights,
        bytes_written=operator.bytes_written - (FP32_BYTES - BF16_BYTES) * weights,
        copies=operator.copies + 1,
        copied_bytes=operator.copied_bytes + (BF16_BYTES + 2 * FP32_BYTES) * weights,
    )


def _in_fp8(operator: Operator) -> Operator:
    if operator.kind is OperatorKind.GROUPED_GEMM:
        groups, rows, columns, inner = operator.shape
        weights = groups * columns * inner
        saved = rows * (columns + inner) if operator.is_weight_gradient else rows * inner + weights
    elif operator.kind is OperatorKind.GEMM and not operator.name.startswith(ROUTER):
        rows, columns, inner = operator.shape
        saved = inner * (rows + columns)
    else:
        return operator
    cast = 0 if operator.is_weight_gradient else rows * inner
    values = {f.name: getattr(operator, f.name) for f in fields(operator)}
    return Fp8Product(
        **values
        | {
            "bytes_read": operator.bytes_read - saved,  # a byte less for each value of the operands
            "copies": operator.copies + (cast > 0),
            "copied_bytes": operator.copied_bytes + CAST_BYTES * cast,
        }
    )


def weight_cast(values: int) -> Operator:
    """Return the operator that casts as many weights to fp8, once an iteration (Transformer Engine keeps them)."""
    return Operator(
        name="cast",
        kind=OperatorKind.MEMORY,
        shape=(values,),
        flops=0,
        bytes_read=BF16_BYTES * values,
        bytes_written=(CAST_BYTES - BF16_BYTES) * values,
        kernels=1,
    )
