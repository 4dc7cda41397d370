# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""SwiGLU, GeGLU, activations without a gate, and their backwards in Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kareus.model.config import ActivationKind
from kareus.model.kernels.sums import FMA

SPAN = 1024
"""Columns of one program."""
_PLAIN = {
    ActivationKind.GEGLU: str(ActivationKind.GELU),
    ActivationKind.GEGLU_TANH: str(ActivationKind.GELU_TANH),
}
"""Activation of the gate."""


def swiglu(gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    result = gate_up.new_empty((*gate_up.shape[:-1], size))
    _swiglu[(result.numel() // size, triton.cdiv(size, SPAN))](gate_up, result, size, SPAN=SPAN, **FMA)
    return result


def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gradient, gate_up = gradient.contiguous(), gate_up.contiguous()
    size = gradient.shape[-1]
    result = torch.empty_like(gate_up)
    grid = (gradient.numel() // size, triton.cdiv(size, SPAN))
    _swiglu_backward[grid](gradient, gate_up, result, size, SPAN=SPAN, **FMA)
    return result


def geglu(gate_up: Tensor, kind: ActivationKind) -> Tensor:
    """See `kareus.model.fused`."""
    gate_up = gate_up.contiguous()
    size = gate_up.shape[-1] // 2
    result = gate_up.new_empty((*gate_up.shape[:-1], size))
    grid = (result.numel() // size, triton.cdiv(size, SPAN))
    _geglu[grid](gate_up, result, size, KIND=_PLAIN[kind], SPAN=SPAN, **FMA)
    return result


def geglu_backward(gradient: Tensor, gate_up: Tensor, kind: ActivationKind) -> Tensor:
    """See `kareus.model.fused`."""
    gradient, gate_up = gradient.contiguous(), gate_up.contiguous()
    size = gradient.shape[-1]
    result = torch.empty_like(gate_up)
    grid = (gradient.numel() // size, triton.cdiv(size, SPAN))
    _geglu_backward[grid](gradient, gate_up, result, size, KIND=_PLAIN[kind], SPAN=SPAN, **FMA)
    return result


def activate(x: Tensor, kind: ActivationKind) -> Tensor:
    """See `kareus.model.fused`."""
    x = x.contiguous()
    result = torch.empty_like(x)
    _activate[(triton.cdiv(x.numel(), SPAN),)](x, result, x.numel(), KIND=str(kind), SPAN=SPAN, **FMA)
    return result


def activate_backward(gradient: Tensor, x: Tensor, kind: ActivationKind) -> Tensor:
    """See `kareus.model.fused`."""
    gradient, x = gradient.contiguous(), x.contiguous()
    result = torch.empty_like(x)
    _activate_backward[(triton.cdiv(x.numel(), SPAN),)](
        gradient, x, result, x.numel(), KIND=str(kind), SPAN=SPAN, **FMA
    )
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


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _active(value, KIND: tl.constexpr):
    if KIND == "squared-relu":
        positive = tl.maximum(value, 0.0)
        return positive * positive
    elif KIND == "relu":
        return tl.maximum(value, 0.0)
    elif KIND == "gelu":
        return 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    else:
        return 0.5 * value * (1 + _tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)))


@triton.jit
def _slope(value, KIND: tl.constexpr):
    if KIND == "squared-relu":
        return 2 * tl.maximum(value, 0.0)
    elif KIND == "relu":
        return tl.where(value > 0, 1.0, 0.0)
    elif KIND == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
        return 0.5 * (1 + tl.erf(value * 0.7071067811865476)) + value * density
    else:
        inner = _tanh(0.7978845608028654 * (value + 0.044715 * value * value * value))
        steep = 0.7978845608028654 * (1 + 3 * 0.044715 * value * value)
        return 0.5 * (1 + inner) + 0.5 * value * (1 - inner * inner) * steep


@triton.jit
def _geglu(gate_up, result, size, KIND: tl.constexpr, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0).to(tl.float32)
    active = _active(gate, KIND).to(result.dtype.element_ty).to(tl.float32)  # rounded, as by the definition
    tl.store(result + row * size + column, (active * up).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _geglu_backward(gradient, gate_up, result, size, KIND: tl.constexpr, SPAN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    inside = column < size
    arriving = tl.load(gradient + row * size + column, mask=inside, other=0).to(tl.float32)
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0).to(tl.float32)
    gate_gradient = arriving * up * _slope(gate, KIND)
    tl.store(result + row * 2 * size + column, gate_gradient.to(result.dtype.element_ty), mask=inside)
    up_gradient = arriving * _active(gate, KIND)
    tl.store(result + row * 2 * size + size + column, up_gradient.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _activate(x, result, count, KIND: tl.constexpr, SPAN: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    value = tl.load(x + at, mask=at < count, other=0).to(tl.float32)
    tl.store(result + at, _active(value, KIND).to(result.dtype.element_ty), mask=at < count)


@triton.jit
def _activate_backward(gradient, x, result, count, KIND: tl.constexpr, SPAN: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    arriving = tl.load(gradient + at, mask=at < count, other=0).to(tl.float32)
    value = tl.load(x + at, mask=at < count, other=0).to(tl.float32)
    tl.store(result + at, (arriving * _slope(value, KIND)).to(result.dtype.element_ty), mask=at < count)
