"""Operators with their own backward, each keeping for it only what a fused implementation keeps.

Weight gradients are added to fp32 buffers where they arise (gradient accumulation fused into the weight
gradient, as in Megatron-LM), so that backward returns gradients of activations only. Those of matrix products and of
the embedding can be put off, so that a collective starts before them, or the stage before goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

Later = list[Callable[[], None]]
"""Functions that add weight gradients, in the order in which these were deferred."""

_put_off: list[Later] = []
"""Lists that take deferred weight gradients, the innermost last; backward may run on another thread."""


@contextmanager
def weight_gradients_put_off() -> Iterator[Later]:
    """Collect what adds the weight gradients of matrix products and the embedding, instead of adding them."""
    later: Later = []
    _put_off.append(later)
    try:
        yield later
    finally:
        _put_off.pop()


def add_or_put_off(add: Callable[[], None]) -> None:
    """Add a weight gradient, or collect what adds it."""
    if _put_off:
        _put_off[-1].append(add)
    else:
        add()


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left right to `total` in place, without rounding the product to the dtype of its operands.

    On CUDA one kernel reads bf16, adds up in fp32 and writes fp32; on CPUs, where PyTorch has none, operands are
    converted first, which is exact.

    Args:
        total: [m, n], fp32.
        left: [m, k], bf16 or fp32.
        right: [k, n], as `left`.
    """
    if left.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.add_(left.to(total.dtype) @ right.to(total.dtype))


def apply(function: type[Function], *inputs: Any) -> Tensor:
    """Apply `function`, which returns one tensor."""
    output: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return output


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_gradient: Tensor, *bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight_gradient, ctx.bias_gradients = weight_gradient, bias[1:]
        return functional.linear(x, weight, *bias[:1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        x_gradient = (rows @ weight).view_as(x)  # first, because a collective waits for it
        weight_gradient, bias_gradients = ctx.weight_gradient, ctx.bias_gradients

        def add() -> None:
            add_product(weight_gradient, rows.t(), x.reshape(-1, x.shape[-1]))
            for bias_gradient in bias_gradients:
                bias_gradient.add_(rows.sum(0, dtype=bias_gradient.dtype))

        add_or_put_off(add)
        return x_gradient, None, None, *(None for _ in ctx.needs_input_grad[3:])


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_gradient: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        ctx.weight_gradient = weight_gradient
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        wide = gradient.float()
        normed = x.float() * scale
        ctx.weight_gradient += (wide * normed).flatten(0, -2).sum(0)
        inner = wide * weight
        x_gradient = (inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale
        return x_gradient.to(x.dtype), None, None, None


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _rotated(x, cosine, sine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        return _rotated(gradient, cosine, -sine), None, None


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gate, up = ctx.saved_tensors[0].chunk(2, dim=-1)
        sigmoid = torch.sigmoid(gate)
        gate_gradient = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
        return torch.cat((gate_gradient, gradient * gate * sigmoid), dim=-1)


def linear(x: Tensor, weight: Tensor, weight_gradient: Tensor, *bias: Tensor) -> Tensor:
    """Return x weight^T + bias; backward computes the gradient of x, then adds to those of the weights.

    Args:
        x: [..., inputs].
        weight: [outputs, inputs].
        weight_gradient: as `weight`, fp32.
        bias: nothing, or the bias and its gradient.
    """
    return apply(_Linear, x, weight, weight_gradient, *bias)


def rms_norm(x: Tensor, weight: Tensor, weight_gradient: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) * weight over the last dimension; keeps x and one scale per row."""
    return apply(_RmsNorm, x, weight, weight_gradient, epsilon)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the halves of each head of x, [batch, tokens, heads, head_dim], by [tokens, 1, head_dim / 2] angles."""
    return apply(_Rotate, x, cosine, sine)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of [..., 2 n], gate first; keeps its input."""
    return apply(_SwiGlu, gate_up)
