# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""SwiGLU and its backward in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

SPAN = 1024
"""Columns of one program."""


def swiglu(gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    result = gate_up.new_empty((*gate_up.shape[:-1], size))
    _swiglu[(result.numel() // size, triton.cdiv(size, SPAN))](gate_up, result, size, SPAN=SPAN)
    return result


def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gradient, gate_up = gradient.contiguous(), gate_up.contiguous()
    size = gradient.shape[-1]
    result = torch.empty_like(gate_up)
    grid = (gradient.numel() // size, triton.cdiv(size, SPAN))
    _swiglu_backward[grid](gradient, gate_up, result, size, SPAN=SPAN)
    return result


@triton.jit
def _swiglu(gate_up, result, size, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0).to(tl.float32)
    active = (gate * tl.sigmoid(gate)).to(result.dtype.element_ty).to(tl.float32)  # rounded, as by the definition
    tl.store(result + row * size + column, (active * up).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(gradient, gate_up, result, size, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    arriving = tl.load(gradient + row * size + column, mask=inside, other=0).to(tl.float32)
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    gate_gradient = arriving * up * sigmoid * (1 + gate * (1 - sigmoid))
    tl.store(result + row * 2 * size + column, gate_gradient.to(result.dtype.element_ty), mask=inside)
    up_gradient = arriving * gate * sigmoid
    tl.store(result + row * 2 * size + size + column, up_gradient.to(result.dtype.element_ty), mask=inside)
