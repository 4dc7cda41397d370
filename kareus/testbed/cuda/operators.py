"""Execution of an operator of the graph from its record, by the functions that the model runs.

Matrix products are the model's own calls (`kareus.model.functions`) with the record's shapes, operand layouts and fp32
accumulation of weight gradients; attention is `kareus.model.attention`, with what it copies under context parallelism;
memory-bound operators are those of `kareus.model.fused`.
"""

import re
from functools import partial
from typing import NamedTuple, cast

import torch

from kareus.errors import KareusError
from kareus.graph.records import WEIGHT_GRADIENT_SUFFIX, Operator, OperatorKind
from kareus.model import attention
from kareus.model.communication import Communicator
from kareus.model.functions import Context, add_product
from kareus.testbed.cuda.memory_bound import Launch, call_of
from kareus.testbed.cuda.scratch import Scratch

_INPUT_GRADIENT = ".dgrad"


class _Part(NamedTuple):
    """The place in a group that shares its sequences, which is all that attention asks of it."""

    size: int
    rank: int = 0


def prepare(operator: Operator, scratch: Scratch) -> Launch:
    """Allocate what `operator` needs and return what launches it.

    Raises:
        KareusError: a record that no operator of the model makes.
    """
    if operator.kind is OperatorKind.GEMM:
        return _product(operator, scratch)
    if operator.kind is OperatorKind.MEMORY:
        return call_of(operator).prepare(scratch)
    return _attention(operator, scratch)


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
    """Attention of one rank, the first of those that share a sequence; all attend over as many pairs.

    Raises:
        KareusError: its chunks do not explain the FLOPs of the record.
    """
    batch, heads, shared_heads, queries, keys, dimension = operator.shape
    size = keys // queries
    group = cast(Communicator, _Part(size)) if size > 1 else None
    _check_flops(operator, group)
    shared = (
        (batch, keys, shared_heads, dimension) if group is None else (size, batch, queries, shared_heads, dimension)
    )
    query, gradient, key, value = scratch.operands(
        (batch, queries, heads, dimension), (batch, queries, heads * dimension), shared, shared
    )
    gather = (lambda: (key, value)) if group else None
    slopes = attention.alibi_slopes(heads) if _reads_mask(operator, group) else None

    masks = attention.Masks()

    def attend() -> Context:
        context = Context()
        attention.Attention.forward(context, query, key, value, gather, group, slopes, masks)
        return context

    is_forward = operator.kind is OperatorKind.ATTENTION
    if is_forward and slopes is None:
        return attend
    kept = attend()  # it makes the mask, too, as the first block of a training does for all others
    return attend if is_forward else lambda: attention.Attention.backward(kept, gradient)


def _reads_mask(operator: Operator, group: Communicator | None) -> bool:
    """Whether a record of attention reads ALiBi's mask, a number in bf16 for each head, query and key before it."""
    batch, heads, shared_heads, queries, keys, dimension = operator.shape
    query_bytes, shared = 2 * batch * queries * heads * dimension, 2 * 2 * batch * keys * shared_heads * dimension
    forward = operator.kind is OperatorKind.ATTENTION
    others = query_bytes + shared if forward else 3 * query_bytes + shared + 4 * batch * heads * queries
    chunks = attention.chunks(queries, group)
    pairs: int = sum((chunk.local.stop - chunk.local.start) * chunk.end for chunk in chunks)
    return operator.bytes_read == others + 2 * heads * pairs


def _check_flops(operator: Operator, group: Communicator | None) -> None:
    batch, heads, _, queries, _, dimension = operator.shape
    chunks = attention.chunks(queries, group)
    products = 2 if operator.kind is OperatorKind.ATTENTION else 5
    pairs = sum(2 * n * chunk.end - n**2 for chunk in chunks for n in [chunk.local.stop - chunk.local.start])
    if products * batch * heads * dimension * pairs != operator.flops or operator.kernels != len(chunks):
        raise KareusError(
            f"operator {operator.name} of shape {operator.shape}: its {operator.flops} FLOPs are not those of causal "
            f"attention in {operator.kernels} kernels; extract the partitions again."
        )
