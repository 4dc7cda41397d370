"""Launches of the model's memory-bound functions (`kareus.model.fused`) from records of the operator graph.

A record has a name, the shape of its largest output, and bytes. Of the functions of that name, the one whose inputs and
outputs have these bytes is meant: the graph counts inputs and outputs once each, and so what is measured is what was
planned.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from kareus.errors import KareusError
from kareus.graph.records import BIAS_GRADIENT_SUFFIX, Operator
from kareus.model import fused
from kareus.model.config import ActivationKind
from kareus.model.functions import add_rows
from kareus.testbed.cuda.scratch import Scratch

Launch = Callable[[], object]
"""Launches a kernel, or a few, on the current stream."""

EPSILON = 1e-5
_BF16, _FP32, _ID = torch.bfloat16.itemsize, torch.float32.itemsize, torch.int64.itemsize
_SIZES_OF_HEADS = 4
"""Dimensions of queries, keys and values: batch, tokens, heads, head_dim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedCall:
    """A function with sizes: what it reads and writes, and how it is launched."""

    name: str
    """Of the function and its variant, for messages and tables."""
    bytes_read: int
    bytes_written: int
    prepare: Callable[[Scratch], Launch]


class _Heads(NamedTuple):
    """Sizes of the rotation of queries and keys."""

    batch: int
    tokens: int
    queries: int
    keys: int
    dimension: int
    norms: bool

    @property
    def rows(self) -> int:
        return self.batch * self.tokens

    @property
    def head_bytes(self) -> int:
        """Of one head of every token."""
        return _BF16 * self.rows * self.dimension

    @property
    def angle_bytes(self) -> int:
        return _FP32 * self.tokens * self.dimension

    @property
    def scale_bytes(self) -> int:
        return _FP32 * self.rows * (self.queries + self.keys) if self.norms else 0

    def angles(self, scratch: Scratch) -> tuple[Tensor, Tensor]:
        shape = (2, self.tokens, 1, self.dimension // 2)
        cosine, sine = torch.rand(shape, device=scratch.device)
        return cosine, sine

    def norm(self, scratch: Scratch) -> fused.HeadNorm | None:
        if not self.norms:
            return None
        query_weight, key_weight = scratch.operands((self.dimension,), (self.dimension,))
        return fused.HeadNorm(query_weight, key_weight, EPSILON)


def call_of(operator: Operator) -> FusedCall:
    """Return the function of the model that `operator` is a record of.

    Raises:
        KareusError: none has its bytes.
    """
    is_bias = re.sub(r"\.\d+$", "", operator.name).endswith(BIAS_GRADIENT_SUFFIX)
    role = BIAS_GRADIENT_SUFFIX if is_bias else operator.name.partition(".")[0]
    for call in _CALLS.get(role, _none)(operator):
        if (call.bytes_read, call.bytes_written) == (operator.bytes_read, operator.bytes_written):
            return call
    raise KareusError(
        f"operator {operator.name} of shape {operator.shape}: no function of the model reads {operator.bytes_read} and "
        f"writes {operator.bytes_written} bytes; extract the partitions again."
    )


def _none(_operator: Operator) -> Iterator[FusedCall]:
    return iter(())


def _norms(operator: Operator) -> Iterator[FusedCall]:
    *_, size = shape = operator.shape
    rows = prod(shape[:-1])
    hidden, scales = _BF16 * rows * size, _FP32 * rows
    for joined in (0, 1):
        yield FusedCall(
            name="residual_norm" if joined else "norm",
            bytes_read=hidden * (1 + joined) + _BF16 * size,
            bytes_written=hidden * (1 + joined) + scales,
            prepare=partial(_prepare_norm, shape, bool(joined)),
        )
        yield FusedCall(
            name="residual_norm_backward" if joined else "norm_backward",
            bytes_read=hidden * (2 + joined) + scales + (_BF16 + _FP32) * size,
            bytes_written=hidden + _FP32 * size,
            prepare=partial(_prepare_norm_backward, shape, bool(joined)),
        )

    for joined, biased in itertools.product((0, 1), repeat=2):
        yield FusedCall(
            name="residual_layer_norm" if joined else "layer_norm",
            bytes_read=hidden * (1 + joined) + _BF16 * size * (1 + biased),
            bytes_written=hidden * (1 + joined) + 2 * scales,
            prepare=partial(_prepare_layer_norm, shape, bool(joined), bool(biased)),
        )
        yield FusedCall(
            name="residual_layer_norm_backward" if joined else "layer_norm_backward",
            bytes_read=hidden * (2 + joined) + 2 * scales + (_BF16 + _FP32 * (1 + biased)) * size,
            bytes_written=hidden + _FP32 * size * (1 + biased),
            prepare=partial(_prepare_layer_norm_backward, shape, bool(joined), bool(biased)),
        )


def _prepare_layer_norm(shape: tuple[int, ...], joined: bool, biased: bool, scratch: Scratch) -> Launch:  # noqa: FBT001
    stream, update, weight, bias = scratch.operands(shape, shape, shape[-1:], shape[-1:])
    affine = fused.Affine(weight, bias if biased else None)
    return partial(fused.residual_layer_norm, stream, update if joined else None, affine, EPSILON)


def _prepare_layer_norm_backward(shape: tuple[int, ...], joined: bool, biased: bool, scratch: Scratch) -> Launch:  # noqa: FBT001
    gradient, carried, stream, weight = scratch.operands(shape, shape, shape, shape[-1:])
    mean, scale = torch.ones((2, *shape[:-1], 1), device=scratch.device)
    totals = fused.Affine(scratch.sums(shape[-1:]), scratch.sums(shape[-1:]) if biased else None)
    kept = (stream, mean, scale)
    return partial(fused.residual_layer_norm_backward, gradient, carried if joined else None, kept, weight, totals)


def _prepare_norm(shape: tuple[int, ...], joined: bool, scratch: Scratch) -> Launch:  # noqa: FBT001 - see FusedCall
    stream, update, weight = scratch.operands(shape, shape, shape[-1:])
    return partial(fused.residual_norm, stream, update if joined else None, weight, EPSILON)


def _prepare_norm_backward(shape: tuple[int, ...], joined: bool, scratch: Scratch) -> Launch:  # noqa: FBT001
    gradient, carried, stream, weight = scratch.operands(shape, shape, shape, shape[-1:])
    scale = torch.ones((*shape[:-1], 1), device=scratch.device)
    kept = (stream, scale, weight, scratch.sums(shape[-1:]))
    return partial(fused.residual_norm_backward, gradient, carried if joined else None, *kept)


def _rotations(operator: Operator) -> Iterator[FusedCall]:
    if len(operator.shape) != _SIZES_OF_HEADS:
        return
    batch, tokens, heads, dimension = operator.shape
    for norms in (False, True):
        for keys in range(1, heads + 1):
            sizes = _Heads(batch, tokens, heads, keys, dimension, norms)
            for apart in (False, True):
                moved = sizes.head_bytes * (heads + keys + keys * apart)
                yield FusedCall(
                    name="norm_rotate" if norms else "rotate",
                    bytes_read=moved + sizes.angle_bytes + 2 * norms * _BF16 * dimension,
                    bytes_written=moved + sizes.scale_bytes,
                    prepare=partial(_prepare_rotation, sizes, apart),
                )
        for keys in range((heads - 1) // 2, 0, -1):
            sizes = _Heads(batch, tokens, heads - 2 * keys, keys, dimension, norms)
            kept = sizes.head_bytes * (sizes.queries + keys) + 2 * (_BF16 + _FP32) * dimension + sizes.scale_bytes
            yield FusedCall(
                name="norm_rotate_backward" if norms else "rotate_backward",
                bytes_read=sizes.head_bytes * heads + sizes.angle_bytes + norms * kept,
                bytes_written=sizes.head_bytes * heads + 2 * norms * _FP32 * dimension,
                prepare=partial(_prepare_rotation_backward, sizes),
            )


def _prepare_rotation(sizes: _Heads, apart: bool, scratch: Scratch) -> Launch:  # noqa: FBT001 - see FusedCall
    heads = sizes.queries, sizes.keys
    (qkv,) = scratch.results((sizes.batch, sizes.tokens, (heads[0] + 2 * heads[1]) * sizes.dimension))
    return partial(fused.rotate, qkv, sizes.angles(scratch), heads, sizes.norm(scratch), apart=apart)


def _prepare_rotation_backward(sizes: _Heads, scratch: Scratch) -> Launch:
    each = [(sizes.batch, sizes.tokens, n, sizes.dimension) for n in (sizes.queries, sizes.keys, sizes.keys)]
    width = (sizes.queries + 2 * sizes.keys) * sizes.dimension
    *gradients, qkv, query_weight, key_weight = scratch.operands(
        *each, (sizes.batch, sizes.tokens, width), *[(sizes.dimension,)] * 2
    )
    angles = sizes.angles(scratch)
    if not sizes.norms:
        return partial(fused.rotate_backward, fused.Rotated(*gradients), angles)
    scales = tuple(torch.ones(sizes.batch, sizes.tokens, shape[2], 1, device=scratch.device) for shape in each[:2])
    totals = scratch.sums((2, sizes.dimension))
    norm = fused.HeadNorm(query_weight, key_weight, EPSILON)
    return partial(
        fused.norm_rotate_backward, fused.Rotated(*gradients), angles, qkv, scales, norm, (totals[0], totals[1])
    )


def _activations(operator: Operator) -> Iterator[FusedCall]:
    *rows, size = operator.shape
    written = _BF16 * prod(operator.shape)
    yield FusedCall(
        name="swiglu",
        bytes_read=2 * written,
        bytes_written=written,
        prepare=lambda scratch: partial(fused.swiglu, *scratch.operands((*rows, 2 * size))),
    )
    yield FusedCall(
        name="swiglu_backward",
        bytes_read=written + written // 2,
        bytes_written=written,
        prepare=lambda scratch: partial(fused.swiglu_backward, *scratch.operands((*rows, size // 2), (*rows, size))),
    )

    # Which of them has a gate, and what is a backward, is not known where bytes are the same: then so is the time.
    yield FusedCall(
        name="activate",
        bytes_read=written,
        bytes_written=written,
        prepare=partial(_prepare_activation, operator.shape),
    )
    yield FusedCall(
        name="activate_backward",
        bytes_read=2 * written,
        bytes_written=written,
        prepare=partial(_prepare_activation_backward, operator.shape),
    )


def _prepare_activation(shape: tuple[int, ...], scratch: Scratch) -> Launch:
    (x,) = scratch.operands(shape)
    return partial(fused.activate, x, ActivationKind.GELU)


def _prepare_activation_backward(shape: tuple[int, ...], scratch: Scratch) -> Launch:
    gradient, x = scratch.operands(shape, shape)
    return partial(fused.activate_backward, gradient, x, ActivationKind.GELU)


def _splits(operator: Operator) -> Iterator[FusedCall]:
    """Heads without rotation: copies apart from each other, and in backward the joining of gradients."""
    if len(operator.shape) != _SIZES_OF_HEADS:
        return
    *outer, heads, dimension = operator.shape
    moved = _BF16 * prod(operator.shape)
    copied = operator.bytes_written * heads // moved  # the shape is that of the queries
    keys = (copied - heads) // 2
    if keys > 0:
        sizes = [heads, keys, keys]
        yield FusedCall(
            name="split_heads",
            bytes_read=moved * sum(sizes) // heads,
            bytes_written=moved * sum(sizes) // heads,
            prepare=lambda scratch: partial(_copied, scratch.operands((*outer, sum(sizes), dimension))[0], sizes),
        )
    parts = [(*outer, n, dimension) for n in (heads - 2, 1, 1)]
    yield FusedCall(
        name="split_heads_backward",
        bytes_read=moved,
        bytes_written=moved,
        prepare=lambda scratch: partial(torch.cat, scratch.operands(*parts), dim=2),
    )


def _copied(fused_heads: Tensor, sizes: list[int]) -> None:
    for part in torch.split(fused_heads, sizes, dim=2):
        part.contiguous()


def _bias_gradients(operator: Operator) -> Iterator[FusedCall]:
    (size,) = operator.shape
    rows = (operator.bytes_read - _FP32 * size) // (_BF16 * size)
    yield FusedCall(
        name="bias_gradient",
        bytes_read=_BF16 * rows * size + _FP32 * size,
        bytes_written=_FP32 * size,
        prepare=lambda scratch: partial(add_rows, scratch.sums((size,)), *scratch.operands((rows, size))),
    )


def _embeddings(operator: Operator) -> Iterator[FusedCall]:
    *outer, size = operator.shape
    tokens = prod(outer)
    yield FusedCall(
        name="embed",
        bytes_read=(_ID + _BF16 * size) * tokens,
        bytes_written=_BF16 * size * tokens,
        prepare=partial(_prepare_lookup, tokens, size),
    )
    looked_up = operator.bytes_written // (_FP32 * size)
    yield FusedCall(
        name="embed_backward",
        bytes_read=(_ID + (_BF16 + _FP32) * size) * looked_up,
        bytes_written=_FP32 * size * looked_up,
        prepare=partial(_prepare_lookup_backward, tokens, size, looked_up),
    )

    yield from _lookups_with_positions(operator)


def _lookups_with_positions(operator: Operator) -> Iterator[FusedCall]:
    *outer, size = operator.shape
    tokens, positions = prod(outer), outer[-1]
    yield FusedCall(
        name="embed_with_positions",
        bytes_read=(_ID + _BF16 * size) * tokens + _BF16 * size * positions,
        bytes_written=_BF16 * size * tokens,
        prepare=partial(_prepare_lookup_with_positions, tokens, positions, size),
    )
    # What is written are rows of tokens and of positions; the gradient is read for either.
    rows = operator.bytes_written // (_FP32 * size)
    looked_up = (operator.bytes_read - _FP32 * size * rows) // (_ID + 2 * _BF16 * size)
    yield FusedCall(
        name="embed_with_positions_backward",
        bytes_read=(_ID + 2 * _BF16 * size) * looked_up + _FP32 * size * rows,
        bytes_written=_FP32 * size * rows,
        prepare=partial(_prepare_lookup_with_positions_backward, tokens, size, looked_up, rows - looked_up),
    )


def _prepare_lookup_with_positions(tokens: int, positions: int, size: int, scratch: Scratch) -> Launch:
    weight, added = scratch.operands((tokens, size), (positions, size))
    ids = torch.randperm(tokens, device=scratch.device).view(-1, positions)
    return partial(fused.embed, ids, weight, 0, added)


def _prepare_lookup_with_positions_backward(
    rows: int, size: int, tokens: int, positions: int, scratch: Scratch
) -> Launch:
    (gradient,), ids = scratch.operands((tokens // positions, positions, size)), _spread_ids(tokens, rows, scratch)
    ids = ids.view(gradient.shape[:2])
    totals = scratch.sums((rows, size)), scratch.sums((positions, size))
    return partial(_add_to_rows_and_positions, gradient, ids, *totals)


def _add_to_rows_and_positions(gradient: Tensor, ids: Tensor, total: Tensor, positions_total: Tensor) -> None:
    """Add the gradient of tokens with learned positions to both tables, as the embedding's backward does."""
    fused.embed_backward(gradient, ids, 0, total)
    everything = slice(0, gradient.shape[1])
    fused.add_over_sequences(gradient, positions_total, [(everything, everything)])


def _spread_ids(tokens: int, rows: int, scratch: Scratch) -> Tensor:
    """Ids far apart, the same row seldom twice."""
    return torch.arange(tokens, device=scratch.device) * 7919 % rows


def _prepare_lookup(tokens: int, size: int, scratch: Scratch) -> Launch:
    """Look up as many rows as there are tokens: each row of a table is in HBM, whatever its length."""
    (weight,) = scratch.operands((tokens, size))
    return partial(fused.embed, torch.randperm(tokens, device=scratch.device), weight, 0)


def _prepare_lookup_backward(rows: int, size: int, tokens: int, scratch: Scratch) -> Launch:
    (gradient,) = scratch.operands((tokens, size))
    return partial(fused.embed_backward, gradient, _spread_ids(tokens, rows, scratch), 0, scratch.sums((rows, size)))


def _losses(operator: Operator) -> Iterator[FusedCall]:
    """The cross-entropy between its collectives: maxima, exponentials, the loss, and the gradient of the logits."""
    tokens = prod(operator.shape[:2])
    labels, number = _ID * tokens, _FP32 * tokens
    vocabulary = operator.bytes_read // (_BF16 * tokens)
    yield FusedCall(
        name="maxima",
        bytes_read=_BF16 * tokens * vocabulary,
        bytes_written=number,
        prepare=partial(_prepare_maxima, tokens, vocabulary),
    )
    vocabulary = (operator.bytes_read - labels - number - _BF16 * tokens) // (_BF16 * tokens)
    yield FusedCall(
        name="exponentials",
        bytes_read=_BF16 * tokens * vocabulary + number + labels + _BF16 * tokens,
        bytes_written=2 * number,
        prepare=partial(_prepare_exponentials, tokens, vocabulary),
    )
    yield FusedCall(
        name="mean_loss",
        bytes_read=3 * number,
        bytes_written=number + _FP32,
        prepare=partial(_prepare_loss, tokens),
    )
    vocabulary = (operator.bytes_read - labels - _BF16 * tokens) // (_BF16 * tokens)
    yield FusedCall(
        name="cross_entropy",
        bytes_read=_BF16 * tokens * vocabulary + labels + _BF16 * tokens,
        bytes_written=number + _FP32,
        prepare=partial(_prepare_cross_entropy, tokens, vocabulary),
    )
    vocabulary = operator.shape[-1]
    yield FusedCall(
        name="cross_entropy_backward",
        bytes_read=_BF16 * tokens * vocabulary + number + labels + _FP32,
        bytes_written=_BF16 * tokens * vocabulary,
        prepare=partial(_prepare_loss_backward, tokens, vocabulary),
    )


def _prepare_maxima(tokens: int, vocabulary: int, scratch: Scratch) -> Launch:
    (logits,) = scratch.operands((tokens, vocabulary))
    return partial(fused.maxima, logits)


def _labels(tokens: int, vocabulary: int, scratch: Scratch) -> tuple[Tensor, Tensor]:
    rows = torch.arange(tokens, device=scratch.device) % vocabulary
    return rows, torch.ones(tokens, dtype=torch.bool, device=scratch.device)


def _prepare_exponentials(tokens: int, vocabulary: int, scratch: Scratch) -> Launch:
    (logits,) = scratch.operands((tokens, vocabulary))
    maximum = torch.ones(tokens, device=scratch.device)
    return partial(fused.exponentials, logits, maximum, *_labels(tokens, vocabulary, scratch))


def _prepare_cross_entropy(tokens: int, vocabulary: int, scratch: Scratch) -> Launch:
    (logits,) = scratch.operands((tokens, vocabulary))
    return partial(fused.cross_entropy, logits, *_labels(tokens, vocabulary, scratch))


def _prepare_loss(tokens: int, scratch: Scratch) -> Launch:
    total, labelled, maximum = torch.ones(3, tokens, device=scratch.device)
    return partial(fused.mean_loss, total, labelled, maximum)


def _prepare_loss_backward(tokens: int, vocabulary: int, scratch: Scratch) -> Launch:
    (logits,) = scratch.results((tokens, vocabulary))
    log_sum_exp, factor = torch.ones(tokens, device=scratch.device), torch.ones((), device=scratch.device)
    return partial(fused.cross_entropy_backward_, logits, log_sum_exp, *_labels(tokens, vocabulary, scratch), factor)


_CALLS: dict[str, Callable[[Operator], Iterator[FusedCall]]] = {
    "norm": _norms,
    "rope": _rotations,
    "heads": _splits,
    BIAS_GRADIENT_SUFFIX: _bias_gradients,
    "activation": _activations,
    "embedding": _embeddings,
    "loss": _losses,
}
"""Functions by the name of the operator."""
