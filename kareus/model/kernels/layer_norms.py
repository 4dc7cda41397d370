# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""LayerNorm with residual addition, and its backward, in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.fused.layer_norms import Affine, LayerNormed
from kareus.model.kernels.norms import ROWS
from kareus.model.kernels.sums import add_sums, warps


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
        ADDS=adds, BIASED=affine.bias is not None, ROWS=ROWS, BLOCK=block, num_warps=warps(block),
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
    programs, block = triton.cdiv(rows, ROWS), triton.next_power_of_2(size)
    result = torch.empty_like(stream)
    sums = torch.empty((2 if biased else 1, programs, size), dtype=torch.float32, device=stream.device)
    carried = gradient if stream_gradient is None else stream_gradient.contiguous()
    _residual_layer_norm_backward[(programs,)](
        gradient, carried, stream, mean, scale, weight, result, sums, rows, size, programs,
        CARRIES=carries, BIASED=biased, ROWS=ROWS, BLOCK=block, num_warps=warps(block),
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
    BLOCK: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    within = column < size
    gain = tl.load(weight + column, mask=within, other=0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    start = first * size
    summed = tl.zeros([BLOCK], tl.float32)
    arrived = tl.zeros([BLOCK], tl.float32)
    for n in range(ROWS):
        inside = within & (first + n < rows)
        at = start + n * size + column
        factor = tl.load(scale + first + n, mask=first + n < rows, other=0)
        centre = tl.load(mean + first + n, mask=first + n < rows, other=0)
        wide = tl.load(stream + at, mask=inside, other=0).to(tl.float32)
        normed = tl.where(inside, (wide - centre) * factor, 0.0)
        arriving = tl.load(gradient + at, mask=inside, other=0).to(tl.float32)
        summed += arriving * normed
        arrived += arriving
        inner = arriving * gain
        leaving = (inner - tl.sum(inner, 0) / size - normed * (tl.sum(inner * normed, 0) / size)) * factor
        if CARRIES:
            leaving += tl.load(carried + at, mask=inside, other=0).to(tl.float32)
        tl.store(result + at, leaving.to(result.dtype.element_ty), mask=inside)
    own = sums + tl.program_id(0).to(tl.int64) * size + column
    tl.store(own, summed, mask=within)
    if BIASED:
        tl.store(own + programs * size, arrived, mask=within)
