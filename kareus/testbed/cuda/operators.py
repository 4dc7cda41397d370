"""Execution of an operator of the graph from its record, by the kernels that the model launches.

Matrix products and attention, where nearly all time goes, are the model's own calls (`kareus.model.functions`,
`kareus.model.attention`) with the record's shapes, operand layouts and fp32 accumulation of weight gradients. A group
of memory-bound operators, or the copies around attention, is a stream of as many kernels, bytes read and bytes written
as its record counts, not the model's own code: the record says what a fused implementation moves and has lost which
operators were joined, while the model's functions, run one PyTorch operation at a time, would move several times as
much.
"""

import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kareus.errors import KareusError
from kareus.graph.records import WEIGHT_GRADIENT_SUFFIX, Operator, OperatorKind
from kareus.model import attention
from kareus.model.functions import add_product
from kareus.testbed.cuda.scratch import Scratch

Launch = Callable[[], object]
"""Launches a kernel, or a few, on the current stream."""

_INPUT_GRADIENT = ".dgrad"
_BYTES = torch.int32.itemsize
_ITEMS = _BYTES // 2
"""Elements of bfloat16 in an element that is streamed."""


def prepare(operator: Operator, scratch: Scratch) -> Launch:
    """Allocate what `operator` needs and return what launches it.

    Raises:
        KareusError: a record that no operator of the model makes.
    """
    if operator.kind is OperatorKind.GEMM:
        return _product(operator, scratch)
    if operator.kind is OperatorKind.MEMORY:
        return _streaming(operator.bytes_read, operator.bytes_written, operator.kernels, scratch)
    attend = _attention(operator, scratch)
    if not operator.copies:
        return attend
    moved_bytes = operator.copied_bytes // 2
    copy = _streaming(moved_bytes, moved_bytes, operator.copies, scratch)
    return lambda: (copy(), attend())


def _product(operator: Operator, scratch: Scratch) -> Launch:
    """The product y = x w^T, and of its backward x' = y' w and w' += y'^T x (`kareus.model.functions.linear`)."""
    m, n, k = operator.shape
    role = re.sub(r"\.\d+$", "", operator.name)  # `qkv.wgrad.2` is the second of its name
    if role.endswith(WEIGHT_GRADIENT_SUFFIX):
        gradient, rows = scratch.operands((k, m), (k, n))
        return partial(add_product, scratch.sums((m, n)), gradient.t(), rows)
    (result,) = scratch.results((m, n))
    if role.endswith(_INPUT_GRADIENT):
        return partial(torch.mm, *scratch.operands((m, k), (k, n)), out=result)
    rows, weight = scratch.operands((m, k), (n, k))
    return partial(torch.mm, rows, weight.t(), out=result)


def _attention(operator: Operator, scratch: Scratch) -> Launch:
    batch, heads, shared_heads, queries, keys, dimension = operator.shape
    chunks = _chunks(operator)
    query, gradient, key, value = scratch.operands(
        (batch, queries, heads, dimension),
        (batch, queries, heads, dimension),
        (batch, keys, shared_heads, dimension),
        (batch, keys, shared_heads, dimension),
    )
    attending = [(query[:, local], key[:, :end], value[:, :end]) for local, end in chunks]
    if operator.kind is OperatorKind.ATTENTION:
        return lambda: [attention._attend(*chunk) for chunk in attending]
    attended = [attention._attend(*chunk) for chunk in attending]
    gradients = [gradient[:, local] for local, _ in chunks]
    return lambda: [attention._attend_backward(*one) for one in zip(gradients, attending, attended, strict=True)]


def _chunks(operator: Operator) -> list[tuple[slice, int]]:
    """Queries of each kernel, and how many keys they attend to.

    Under context parallelism the traced rank, the first, holds the first and the last chunk of the sequence. All ranks
    attend over as many pairs, so it stands for the others.

    Raises:
        KareusError: these chunks do not explain the FLOPs of the record.
    """
    batch, heads, _, queries, keys, dimension = operator.shape
    half = queries // operator.kernels
    chunks = (
        [(slice(0, half), half), (slice(half, queries), keys)] if operator.kernels > 1 else [(slice(0, half), keys)]
    )
    products = 2 if operator.kind is OperatorKind.ATTENTION else 5
    pairs = sum(2 * (local.stop - local.start) * end - (local.stop - local.start) ** 2 for local, end in chunks)
    if products * batch * heads * dimension * pairs != operator.flops:
        raise KareusError(
            f"operator {operator.name} of shape {operator.shape}: its {operator.flops} FLOPs are not those of causal "
            f"attention in {operator.kernels} kernels; extract the partitions again."
        )
    return chunks


def _streaming(bytes_read: int, bytes_written: int, kernels: int, scratch: Scratch) -> Launch:
    read, written = (_elements(n, kernels) for n in (bytes_read, bytes_written))
    (source,), (target,) = scratch.operands((read * _ITEMS,)), scratch.results((written * _ITEMS,))
    once = _stream(source.view(torch.int32), target.view(torch.int32))
    return lambda: [once() for _ in range(kernels)]


def _elements(total_bytes: int, kernels: int) -> int:
    return -(-total_bytes // (kernels * _BYTES))


def _stream(source: Tensor, target: Tensor) -> Launch:
    if not source.is_cuda:
        return partial(stream_on_cpu, source, target)
    from kareus.testbed.cuda.kernels import THREAD_BLOCKS_PER_SM, stream  # noqa: PLC0415 - there is no Triton for CPUs

    sm_count = torch.cuda.get_device_properties(source.device).multi_processor_count
    return partial(stream, source, target, sm_count * THREAD_BLOCKS_PER_SM)


def stream_on_cpu(source: Tensor, target: Tensor) -> None:
    """Read all of `source` and write all of `target`."""
    common = min(source.numel(), target.numel())
    target[:common].copy_(source[:common])
    target[common:].zero_()
    source[common:].sum()
