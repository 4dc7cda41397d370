"""Kernels of software that the operator graph lacks, or has fused: softmax, loss, dropout, casts.

The operator graph has one kernel that scales, masks and takes the softmax; where Megatron's cannot run, single ones do
it in fp32. Its loss is that of Kareus' engine; of other software all passes over logits are counted. It has no dropout
of what attention and MLP add to the residual stream, and its products are in bf16. In fewer bits, as Transformer Engine
runs it, operands of the three products of a projection are cast once each, together with a transposed copy: the input
by the forward, the gradient of the output by the backward. Weights are cast once an iteration, with its update. What
each format takes is in `kareus.graph.number_formats`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kareus.graph.interleave import ROUTER
from kareus.graph.number_formats import BF16_BYTES, FORMATS, FP32_BYTES, Precision
from kareus.graph.records import TENSOR_PARALLEL, BlockGraph, CollectiveKind, Operator, OperatorKind, Segment
from kareus.model.config import Model
from kareus.model.features import AngleScaling, AngleStretch
from kareus.model.parallelism import Parallelism
from kareus.software.record import LossKernels, Software

ROTATION = "rope"
"""Name of the operator that turns queries and keys."""
MASK_BYTES = 1
"""Bytes of a value of a dropout's mask."""
SINGLE_KERNELS, SINGLE_TRAFFIC = 6, 5
"""Kernels of a softmax that is not fused (cast, scale, mask, softmax, cast) and their traffic over that of one: each of
them reads and writes scores in fp32."""
LOSS = "loss"
"""Name of the operators of the cross-entropy."""
OF_LOSS: Mapping[LossKernels, tuple[tuple[int, int], tuple[int, int]]] = {
    LossKernels.FUSED: ((1, 2), (1, 2 + 2)),
    LossKernels.TRANSFORMER_ENGINE: ((2, 2 + (2 + 2)), (1, 2 + 2)),
    LossKernels.COMPILED: ((3, (2 + 4) + (4 + 4) + (4 + 4)), (2, (4 + 4) + (4 + 4 + 2))),
    LossKernels.SEPARATE: ((6, (2 + 4) + 4 + (4 + 4) + (4 + 4) + 4 + (4 + 4)), (2, (4 + 4) + (4 + 2))),
    LossKernels.PYTORCH: ((2, (2 + 4) + (3 * 4 + 4)), (3, 4 + (2 * 4 + 4 + 4) + (4 + 2))),
}
"""Kernels of a loss that go over all logits, and the bytes of a logit that they read and write, forward and backward.

Megatron's loss casts, takes the maximum, subtracts it, takes exponentials, their sum, and divides; backward it scales
and casts. Compiled, cast and maximum are one kernel, exponentials and sum another, the division a third
(`megatron/core/tensor_parallel/cross_entropy.py`, `fusions/fused_cross_entropy.py`); backward, in place, one copies
probabilities, from which those of labels are taken off, the other scales, casts, and writes the product back (counted
in what Inductor generates for CPUs, PyTorch 2.13). flash-attn
(`flash_attn/ops/triton/cross_entropy.py`) reads logits once and writes their gradient; Transformer Engine
(`transformer_engine/common/triton/cross_entropy.py`) does so forward, after a pass for maxima and sums. PyTorch casts,
and reads rows too long for shared memory three times (`aten/src/ATen/native/cuda/SoftMax.cu`); backward it clears a
gradient, reads that twice and the output once, and casts.
"""

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
    if software.unfused_extras and _scales_rotation(model):
        graph = _changed(graph, _named(ROTATION, _rotated), _named(ROTATION, partial(_rotated_back, model)))
    if software.loss_kernels is not LossKernels.ENGINE:
        graph = _with_loss(graph, software.loss_kernels)
    if not software.fused_accumulation:
        graph = replace(
            graph,
            backward=_all(graph.backward, _accumulated),
            dense_backward=_all(graph.dense_backward, _accumulated),
            head_backward=_all(graph.head_backward, _accumulated),
            embedding_backward=_all(graph.embedding_backward, _accumulated),
        )
    if not FORMATS[precision].is_cast:
        return graph
    graph = _changed(graph, partial(_in_format, precision), partial(_in_format, precision))
    blocks = ("forward", "backward", "dense_forward", "dense_backward")
    return replace(graph, **{part: tuple(_gathered_in(precision, s) for s in getattr(graph, part)) for part in blocks})


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


def _scales_rotation(model: Model) -> bool:
    """Whether rotary embeddings multiply what they turn, as YaRN's do; latent attention has kernels of its own."""
    scaling = model.rotary_scaling
    return isinstance(scaling, AngleScaling) and scaling.stretch is AngleStretch.YARN and model.latent_attention is None


def _rotated(rotation: Operator) -> Operator:
    """Return a rotation without fusion, six kernels each of queries and keys.

    Two exchange halves, two multiply, one adds, and one copies the sum.
    """
    turned_bytes = rotation.bytes_written
    return replace(rotation, kernels=12, bytes_read=round(6.5 * turned_bytes), bytes_written=round(5.5 * turned_bytes))


def _rotated_back(model: Model, rotation: Operator) -> Operator:
    """Gradients of these and of an empty slice, and two sums, beside what puts them together with those of values."""
    heads, key_value_heads = model.num_attention_heads, model.num_key_value_heads
    turned_bytes = rotation.bytes_written * (heads + key_value_heads) // (heads + 2 * key_value_heads)
    return replace(
        rotation,
        kernels=rotation.kernels + 14,
        bytes_read=rotation.bytes_read + round(7.5 * turned_bytes),
        bytes_written=rotation.bytes_written + round(6.5 * turned_bytes),
    )


def _with_loss(graph: BlockGraph, loss_kernels: LossKernels) -> BlockGraph:
    """Return the graph with a software's loss, whose bytes `traffic` does not multiply: kernels of it are counted."""
    forward, backward = OF_LOSS[loss_kernels]
    logits = max(loss.bytes_written for loss in _losses(graph.head_backward)) // BF16_BYTES  # their gradient
    return replace(
        graph,
        head_forward=_moving(graph.head_forward, logits, *forward),
        head_backward=_moving(graph.head_backward, logits, *backward),
    )


def _losses(segments: Sequence[Segment]) -> list[Operator]:
    return [operator for segment in segments for operator in segment.operators if operator.name == LOSS]


def _moving(segments: Sequence[Segment], logits: int, kernels: int, logit_bytes: int) -> tuple[Segment, ...]:
    """Return a pass whose first operator of the loss moves all bytes of logits; the few of each token stay."""
    first, *others = (_without(loss, BF16_BYTES * logits) for loss in _losses(segments))
    operators = iter([replace(first, copies=kernels - first.kernels, copied_bytes=logit_bytes * logits), *others])
    return _all(segments, _named(LOSS, lambda _: next(operators)))


def _without(loss: Operator, logits_bytes: int) -> Operator:
    """Return an operator of the loss without the bytes of logits and of their gradient."""
    read, written = loss.bytes_read, loss.bytes_written
    return replace(
        loss,
        bytes_read=read - logits_bytes * (read >= logits_bytes),
        bytes_written=written - logits_bytes * (written >= logits_bytes),
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


def _in_format(precision: Precision, operator: Operator) -> Operator:
    """A product of operands in a format of fewer bits, which a forward and the gradient of an output have to cast."""
    if operator.kind is OperatorKind.GEMM and not operator.name.startswith(ROUTER):
        rows, columns, inner = operator.shape
        operands = inner * (rows + columns)
    elif operator.kind is OperatorKind.GROUPED_GEMM:
        groups, rows, columns, inner = operator.shape
        operands = rows * (columns + inner) if operator.is_weight_gradient else inner * (rows + groups * columns)
    else:
        return operator
    number_format = FORMATS[precision]
    cast = 0 if operator.is_weight_gradient else rows * inner
    return replace(
        operator,
        precision=precision,
        bytes_read=operator.bytes_read - round((BF16_BYTES - number_format.value_bytes) * operands),
        copies=operator.copies + number_format.casts * (cast > 0),
        copied_bytes=operator.copied_bytes + round(number_format.cast_bytes * cast),
    )


def _gathered_in(precision: Precision, segment: Segment) -> Segment:
    """A segment whose ranks of tensor parallelism gather operands of products as these take them.

    Transformer Engine casts tokens, and gradients of them, before sequence parallelism gathers them, by userbuffers and
    without; what is reduced stays in 16 bits (`transformer_engine/pytorch/module/layernorm_linear.py`).
    """
    collective = segment.collective
    if collective is None or (collective.group, collective.kind) != (TENSOR_PARALLEL, CollectiveKind.ALL_GATHER):
        return segment
    message_bytes = round(collective.message_bytes * FORMATS[precision].value_bytes / BF16_BYTES)
    return replace(segment, collective=replace(collective, message_bytes=message_bytes))


def weight_cast(values: int, precision: Precision) -> Operator:
    """Return the operator that casts as many weights, once an iteration (Transformer Engine keeps them)."""
    number_format = FORMATS[precision]
    written = round(2 * number_format.value_bytes * values)
    return Operator(
        name="cast",
        kind=OperatorKind.MEMORY,
        shape=(values,),
        flops=0,
        bytes_read=round(number_format.cast_bytes * values) - written,
        bytes_written=written,
        kernels=number_format.casts,
    )
