# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""LayerNorm with residual addition, and its backward, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.fused.layer_norms import Affine, LayerNormed
from kareus.model.kernels.norms import BACKWARD_ROWS, ROWS, rows_at_once
from kareus.model.kernels.sums import FMA, add_sums, warps


def residual_layer_norm(stream: Tensor, update: Tensor | None, affine: Affine, epsilon: float) -> LayerNormed:
    """See `kareus.model.fused`."""
    size, adds = stream.shape[-1], update is not None
    stream = stream.contiguous()
    rows = stream.numel() // size
    total = torch.empty_like(stream) if adds else stream
    normed = torch.empty_like(stream)
    mean, scale = (torch.empty((*stream.shape[:-1], 1), dtype=torch.float32, device=stream.device) for _ in range(2))
    block = triton.next_power_of_2(size)
    update = stream if update is None else update.contiguous()
    bias = affine.weight if affine.bias is None else affine.bias
    _residual_layer_norm[(triton.cdiv(rows, ROWS),)](
        stream, update, affine.weight, bias, total, normed, mean, scale, rows, size, epsilon,
        ADDS=adds, BIASED=affine.bias is not None, ROWS=ROWS, BLOCK=block, num_warps=warps(block), **FMA,
    )  # fmt: skip
    return LayerNormed(total, normed, mean, scale)


def residual_layer_norm_backward(
    gradient: Tensor,
    stream_gradient: Tensor | None,
    kept: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    totals: Affine,
) -> Tensor:
    """See `kareus.model.fused`."""
    stream, mean, scale = kept
    size, carries, biased = stream.shape[-1], stream_gradient is not None, totals.bias is not None
    gradient = gradient.contiguous()
    rows = stream.numel() // size
    programs, block = triton.cdiv(rows, BACKWARD_ROWS), triton.next_power_of_2(size)
    step = rows_at_once(block)
    result = torch.empty_like(stream)
    sums = torch.empty((2 if biased else 1, programs, size), dtype=torch.float32, device=stream.device)
    carried = gradient if stream_gradient is None else stream_gradient.contiguous()
    _residual_layer_norm_backward[(programs,)](
        gradient, carried, stream, mean, scale, weight, result, sums, rows, size, programs,
        CARRIES=carries, BIASED=biased, ROWS=BACKWARD_ROWS, STEP=step, BLOCK=block,
        num_warps=warps(step * block), **FMA,
    )  # fmt: skip
    add_sums(sums, totals.weight, totals.weight if totals.bias is None else totals.bias)
    return result


@triton.jit
def _residual_layer_norm(
    stream,
    update,
    weight,
    bias,
    total,
    normed,
    mean,
    scale,
    rows,
    size,
    epsilon,
    ADDS: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    within = column < size
    gain = tl.load(weight + column, mask=within, other=0).to(tl.float32)
    if BIASED:
        offset = tl.load(bias + column, mask=within, other=0).to(tl.float32)
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
        centre = tl.sum(wide, 0) / size
        centred = tl.where(inside, wide - centre, 0.0)
        factor = tl.rsqrt(tl.sum(centred * centred, 0) / size + epsilon)
        tl.store(mean + first + n, centre, mask=first + n < rows)
        tl.store(scale + first + n, factor, mask=first + n < rows)
        result = centred * factor * gain
        if BIASED:
            result += offset
        tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _residual_layer_norm_backward(
    gradient,
    carried,
    stream,
    mean,
    scale,
    weight,
    result,
    sums,
    rows,
    size,
    programs,
    CARRIES: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    across = column[None, :]
    gain = tl.load(weight + across, mask=across < size, other=0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    summed = tl.zeros([STEP, BLOCK], tl.float32)
    arrived = tl.zeros([STEP, BLOCK], tl.float32)
    for n in range(0, ROWS, STEP):
        row = first + n + tl.arange(0, STEP)[:, None]
        inside = (row < rows) & (across < size)
        at = row * size + across
        factor = tl.load(scale + row, mask=row < rows, other=0)
        centre = tl.load(mean + row, mask=row < rows, other=0)
        wide = tl.load(stream + at, mask=inside, other=0).to(tl.float32)
        normed = tl.where(inside, (wide - centre) * factor, 0.0)
        arriving = tl.load(gradient + at, mask=inside, other=0).to(tl.float32)
        summed += arriving * normed
        arrived += arriving
        inner = arriving * gain
        along = tl.sum(inner * normed, 1)[:, None] / size
        leaving = (inner - tl.sum(inner, 1)[:, None] / size - normed * along) * factor
        if CARRIES:
            leaving += tl.load(carried + at, mask=inside, other=0).to(tl.float32)
        tl.store(result + at, leaving.to(result.dtype.element_ty), mask=inside)
    target = sums + tl.program_id(0).to(tl.int64) * size + column
    tl.store(target, tl.sum(summed, 0), mask=column < size)
    if BIASED:
        tl.store(target + programs * size, tl.sum(arrived, 0), mask=column < size)
