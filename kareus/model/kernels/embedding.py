# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Lookup in an embedding, and the gradient of its rows, in Triton."""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from kareus.model.kernels.sums import FMA

SPAN = 1024
"""Columns of one program."""
ROWS, COLUMNS = 8, 256
"""Tile of gradients that a program of the backward adds up."""


def embed(ids: Tensor, weight: Tensor, first: int, added: Tensor | None = None) -> Tensor:
    """See `kareus.model.fused`."""
    rows, size = weight.shape
    result = weight.new_empty((*ids.shape, size))
    tokens = ids.numel() if added is None else ids.shape[-1]  # one program for what is added to all sequences
    _embed[(tokens, triton.cdiv(size, SPAN))](
        ids.contiguous(), weight, weight if added is None else added.contiguous(), result, first, rows, size,
        tokens, ids.numel() // tokens, ADDS=added is not None, SPAN=SPAN, **FMA,
    )  # fmt: skip
    return result


def embed_backward(gradient: Tensor, ids: Tensor, first: int, total: Tensor) -> None:
    """See `kareus.model.fused`."""
    rows, size = total.shape
    by_id, places = ids.flatten().sort(stable=True)
    _embed_backward[(ids.numel(), triton.cdiv(size, COLUMNS))](
        gradient.contiguous(), by_id, places, total, first, rows, ids.numel(), size,
        ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4, **FMA,
    )  # fmt: skip


def add_over_sequences(gradient: Tensor, total: Tensor, places: Sequence[tuple[slice, slice]]) -> None:
    """See `kareus.model.fused`."""
    batch, tokens, size = gradient.shape
    gradient = gradient.contiguous()
    for rows, added in places:
        _add_over_sequences[(added.stop - added.start, triton.cdiv(size, SPAN))](
            gradient, total, added.start, rows.start, batch, tokens, size, SPAN=SPAN, **FMA
        )


@triton.jit
def _add_over_sequences(gradient, total, first_token, first_row, batch, tokens, size, SPAN: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    source = gradient + (first_token + place) * size + column
    summed = tl.zeros([SPAN], tl.float32)
    for _ in range(batch):
        summed += tl.load(source, mask=inside, other=0).to(tl.float32)
        source += tokens * size
    at = total + (first_row + place) * size + column
    tl.store(at, tl.load(at, mask=inside, other=0) + summed, mask=inside)


@triton.jit
def _embed(ids, weight, added, result, first, rows, size, tokens, batch, ADDS: tl.constexpr, SPAN: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    more = tl.zeros([SPAN], tl.float32)
    if ADDS:
        more = tl.load(added + token * size + column, mask=inside, other=0).to(tl.float32)
    for _ in range(batch):
        row = tl.load(ids + token) - first
        here = (row >= 0) & (row < rows)
        value = tl.load(weight + row * size + column, mask=inside & here, other=0)
        if ADDS:
            value = (value.to(tl.float32) + more).to(result.dtype.element_ty)
        tl.store(result + token * size + column, value, mask=inside)
        token += tokens


@triton.jit
def _embed_backward(
    gradient, by_id, places, total, first, rows, tokens, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The program of the first of equal ids adds up the gradients of all of them, in order."""
    start = tl.program_id(0)
    token = tl.load(by_id + start)
    before = tl.load(by_id + start - 1, mask=start > 0, other=-1)
    row = token - first
    if (token != before) & (row >= 0) & (row < rows):
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        within = column < size
        summed = tl.zeros([COLUMNS], tl.float32)
        place = start + tl.arange(0, ROWS)
        same = tl.load(by_id + place, mask=place < tokens, other=-1) == token
        while tl.sum(same.to(tl.int32), 0) > 0:
            source = tl.load(places + place, mask=same, other=0)
            mask = same[:, None] & within[None, :]
            summed += tl.sum(
                tl.load(gradient + source[:, None] * size + column[None, :], mask=mask, other=0).to(tl.float32), 0
            )
            place += ROWS
            same = tl.load(by_id + place, mask=place < tokens, other=-1) == token
        at = total + row * size + column
        tl.store(at, tl.load(at, mask=within, other=0) + summed, mask=within)
