# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""RMSNorm with residual addition, and its backward, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.fused.norms import Normed
from kareus.model.kernels.sums import FMA, add_sums, warps

ROWS = 16
"""Rows of one program of a forward: what all rows share adds a sixteenth of a row to each."""
BACKWARD_ROWS = 32
"""Rows of one program of a backward, which also writes a sum over them in fp32 for each weight, and reads it again."""
_MOST_ROWS_AT_ONCE = 2
_MOST_ELEMENTS = 8192
"""Of all rows that a program handles at once: 16 for each thread of the largest programs."""


def rows_at_once(block: int) -> int:
    """Return how many rows of `block` elements a program of a backward handles at once.

    Two keep as many loads in flight as two programs of half the rows would.
    """
    return _MOST_ROWS_AT_ONCE if _MOST_ROWS_AT_ONCE * block <= _MOST_ELEMENTS else 1


def residual_norm(stream: Tensor, update: Tensor | None, weight: Tensor, epsilon: float) -> Normed:
    """See `kareus.model.fused`."""
    size, adds = stream.shape[-1], update is not None
    stream = stream.contiguous()
    rows = stream.numel() // size
    total = torch.empty_like(stream) if adds else stream
    normed = torch.empty_like(stream)
    scale = torch.empty((*stream.shape[:-1], 1), dtype=torch.float32, device=stream.device)
    block = triton.next_power_of_2(size)
    update = stream if update is None else update.contiguous()
    _residual_norm[(triton.cdiv(rows, ROWS),)](
        stream, update, weight, total, normed, scale, rows, size, epsilon,
        ADDS=adds, ROWS=ROWS, BLOCK=block, num_warps=warps(block), **FMA,
    )  # fmt: skip
    return Normed(total, normed, scale)


def residual_norm_backward(
    gradient: Tensor, stream_gradient: Tensor | None, stream: Tensor, scale: Tensor, weight: Tensor, total: Tensor
) -> Tensor:
    """See `kareus.model.fused`."""
    size, carries = stream.shape[-1], stream_gradient is not None
    gradient = gradient.contiguous()
    rows = stream.numel() // size
    programs, block = triton.cdiv(rows, BACKWARD_ROWS), triton.next_power_of_2(size)
    step = rows_at_once(block)
    result = torch.empty_like(stream)
    sums = torch.empty((1, programs, size), dtype=torch.float32, device=stream.device)
    carried = gradient if stream_gradient is None else stream_gradient.contiguous()
    _residual_norm_backward[(programs,)](
        gradient, carried, stream, scale, weight, result, sums, rows, size,
        CARRIES=carries, ROWS=BACKWARD_ROWS, STEP=step, BLOCK=block, num_warps=warps(step * block), **FMA,
    )  # fmt: skip
    add_sums(sums, total, total)
    return result


@triton.jit
def _residual_norm(
    stream,
    update,
    weight,
    total,
    normed,
    scale,
    rows,
    size,
    epsilon,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    within = column < size
    gain = tl.load(weight + column, mask=within, other=0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    start = first * size
    for n in range(ROWS):
        inside = within & (first + n < rows)
        at = start + n * size + column
        value = tl.load(stream + at, mask=inside, other=0)
        if ADDS:
            added = tl.load(update + at, mask=inside, other=0)
            value = (value.to(tl.float32) + added.to(tl.float32)).to(normed.dtype.element_ty)
            tl.store(total + at, value, mask=inside)
        wide = value.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, 0) / size + epsilon)
        tl.store(scale + first + n, factor, mask=first + n < rows)
        scaled = (wide * factor).to(normed.dtype.element_ty).to(tl.float32)  # rounded, as by the model's definition
        tl.store(normed + at, (scaled * gain).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _residual_norm_backward(
    gradient,
    carried,
    stream,
    scale,
    weight,
    result,
    sums,
    rows,
    size,
    CARRIES: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    across = column[None, :]
    gain = tl.load(weight + across, mask=across < size, other=0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    summed = tl.zeros([STEP, BLOCK], tl.float32)
    for n in range(0, ROWS, STEP):
        row = first + n + tl.arange(0, STEP)[:, None]
        inside = (row < rows) & (across < size)
        at = row * size + across
        factor = tl.load(scale + row, mask=row < rows, other=0)
        normed = tl.load(stream + at, mask=inside, other=0).to(tl.float32) * factor
        arriving = tl.load(gradient + at, mask=inside, other=0).to(tl.float32)
        summed += arriving * normed
        inner = arriving * gain
        leaving = (inner - normed * (tl.sum(inner * normed, 1)[:, None] / size)) * factor
        if CARRIES:
            leaving += tl.load(carried + at, mask=inside, other=0).to(tl.float32)
        tl.store(result + at, leaving.to(result.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0).to(tl.int64) * size + column, tl.sum(summed, 0), mask=column < size)
