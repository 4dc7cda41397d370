"""The operators of a block as functions with their own backward, each keeping only what a fused one keeps.

Their first arguments are what has a gradient. `apply` runs one under autograd; a pass (`kareus.model.passes`) calls
`forward` and `backward` itself, with a `Context` between them, which spares the host autograd's bookkeeping.

Weight gradients are added to fp32 buffers where they arise (gradient accumulation fused into the weight
gradient, as in Megatron-LM), so that backward returns gradients of activations only. Those of matrix products and of
the embedding can be put off, so that a collective starts before them, or the stage before goes on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from kareus.model import fused
from kareus.model.config import ActivationKind
from kareus.model.fused.dispatch import device_type

Later = list[Callable[[], None]]
"""Functions that add weight gradients, in the order in which these were deferred."""

_put_off: list[Later] = []
"""Lists that take deferred weight gradients, the innermost last; backward may run on another thread."""


class weight_gradients_put_off:  # noqa: N801 - a context manager; a class costs the host a third of a generator's time
    """Collect what adds the weight gradients of matrix products and the embedding, instead of adding them."""

    __slots__ = ()

    def __enter__(self) -> Later:
        """Return the list that collects."""
        later: Later = []
        _put_off.append(later)
        return later

    def __exit__(self, *_: object) -> None:
        """Add gradients at once again."""
        _put_off.pop()


def add_or_put_off(add: Callable[[], None]) -> None:
    """Add a weight gradient, or collect what adds it."""
    if _put_off:
        _put_off[-1].append(add)
    else:
        add()


def add_product(total: Tensor, left: Tensor, right: Tensor, scale: float = 1.0) -> None:
    """Add scale left right to `total` in place, without rounding the product to the dtype of its operands.

    On CUDA one kernel reads bf16, adds up in fp32 and writes fp32; on CPUs, where PyTorch has none, operands are
    converted first, which is exact.

    Args:
        total: [m, n], fp32.
        left: [m, k], bf16 or fp32.
        right: [k, n], as `left`.
        scale: what the product is multiplied by.
    """
    if device_type(left) == "cpu":
        total.add_(left.to(total.dtype) @ right.to(total.dtype), alpha=scale)
    else:
        torch.addmm(total, left, right, alpha=scale, out_dtype=total.dtype, out=total)


class Context:
    """Tensors that a function saves in its forward for its backward, when autograd does not run it."""

    saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors


def apply(function: type[Function], *inputs: Any) -> Any:
    """Apply `function` under autograd; returns the tensor, or the tuple of tensors, that it returns."""
    return function.apply(*inputs)  # type: ignore[no-untyped-call]


class LinearFunction(Function):
    """A matrix product x weight^T + bias; backward computes the gradient of x, then adds to those of the weights.

    `weight` is [outputs, inputs], `weight_gradient` as it, fp32; `bias` is nothing, or the bias and its gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_gradient: Tensor, *bias: Tensor) -> Tensor:
        """Return x weight^T + bias."""
        ctx.save_for_backward(x, weight)
        ctx.weight_gradient, ctx.bias_gradients = weight_gradient, bias[1:]
        return _product(x, weight, *bias[:1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; add those of the weights, or put that off."""
        x, weight = ctx.saved_tensors
        x_gradient = _product_gradients(ctx, gradient, x, weight)
        return x_gradient, None, None, *(None for _ in range(2 * len(ctx.bias_gradients)))


class ScaledLinearFunction(Function):
    """As `LinearFunction`, of which the result is multiplied by `scale`, in the epilogue of the product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_gradient: Tensor, scale: float, *bias: Tensor) -> Tensor:
        """Return scale (x weight^T + bias)."""
        ctx.save_for_backward(x, weight)
        ctx.weight_gradient, ctx.bias_gradients, ctx.scale = weight_gradient, bias[1:], scale
        rows = x.reshape(-1, x.shape[-1])
        added, beta = (bias[0], scale) if bias else (rows.new_empty(weight.shape[0]), 0)
        product: Tensor = torch.ops.aten._unsafe_view(
            torch.addmm(added, rows, weight.t(), beta=beta, alpha=scale), (*x.shape[:-1], weight.shape[0])
        )
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; add those of the weights, or put that off."""
        x, weight = ctx.saved_tensors
        rows, scale, weight_gradient = gradient.reshape(-1, gradient.shape[-1]), ctx.scale, ctx.weight_gradient
        x_gradient = torch.addmm(rows.new_empty(weight.shape[1]), rows, weight, beta=0, alpha=scale).view_as(x)
        add_or_put_off(lambda: add_product(weight_gradient, rows.t(), x.reshape(-1, x.shape[-1]), scale))
        for bias_gradient in ctx.bias_gradients:
            add_or_put_off(partial(add_rows, bias_gradient, rows, scale=scale))
        return x_gradient, None, None, None, *(None for _ in range(2 * len(ctx.bias_gradients)))


class GatheredLinearFunction(Function):
    """As `LinearFunction` of an input that was gathered and is not kept; backward asks for it once more.

    `gather` is called by backward.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gather: Callable[[], Any], weight: Tensor, weight_gradient: Tensor, *bias: Tensor
    ) -> Tensor:
        """Return x weight^T + bias."""
        ctx.save_for_backward(weight)
        ctx.weight_gradient, ctx.gather, ctx.bias_gradients = weight_gradient, gather, bias[1:]
        return _product(x, weight, *bias[:1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; add those of the weights, or put that off."""
        (weight,) = ctx.saved_tensors
        (x,) = ctx.gather()
        x_gradient = _product_gradients(ctx, gradient, x, weight)
        return x_gradient, None, None, None, *(None for _ in range(2 * len(ctx.bias_gradients)))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias; the bias is added in the epilogue of the product.

    The result is no view, so that it can be reduced over GPUs in place.
    """
    if bias is None:
        return functional.linear(x, weight)
    rows = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t())
    product: Tensor = torch.ops.aten._unsafe_view(rows, (*x.shape[:-1], weight.shape[0]))
    return product


def _product_gradients(ctx: Any, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of x of a matrix product; add those of the weights, or put that off."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    x_gradient = (rows @ weight).view_as(x)  # first, because a collective waits for it
    weight_gradient, bias_gradients = ctx.weight_gradient, ctx.bias_gradients

    add_or_put_off(lambda: add_product(weight_gradient, rows.t(), x.reshape(-1, x.shape[-1])))
    for bias_gradient in bias_gradients:
        add_or_put_off(partial(add_rows, bias_gradient, rows))
    return x_gradient


def add_rows(total: Tensor, rows: Tensor, *, scale: float = 1.0) -> None:
    """Add the sum of rows, [rows, size], times `scale` to `total`, [size], fp32."""
    total.add_(rows.sum(0, dtype=total.dtype), alpha=scale)


class ResidualNormFunction(Function):
    """Addition to the residual stream and RMSNorm of the sum; keeps the sum and one scale a row."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, update: Tensor | None, weight: Tensor, weight_gradient: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and what is normalised."""
        out = fused.residual_norm(stream, update, weight, epsilon)
        ctx.save_for_backward(out.stream, weight, out.scale)
        ctx.weight_gradient, ctx.adds = weight_gradient, update is not None
        return out.stream, out.normed

    @staticmethod
    def backward(ctx: Any, stream_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient for both inputs."""
        stream, weight, scale = ctx.saved_tensors
        result = fused.residual_norm_backward(gradient, stream_gradient, stream, scale, weight, ctx.weight_gradient)
        return result, result if ctx.adds else None, None, None, None


class RmsNormFunction(Function):
    """RMSNorm without a residual; keeps its input and one scale a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, weight_gradient: Tensor, epsilon: float) -> Tensor:
        """Normalise x."""
        out = fused.residual_norm(x, None, weight, epsilon)
        ctx.save_for_backward(x, weight, out.scale)
        ctx.weight_gradient = weight_gradient
        return out.normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x."""
        x, weight, scale = ctx.saved_tensors
        return fused.residual_norm_backward(gradient, None, x, scale, weight, ctx.weight_gradient), None, None, None


class ResidualFunction(Function):
    """Addition to the residual stream, where no norm follows; keeps nothing."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, update: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sum twice: what the stream carries on, and what the layer reads."""
        ctx.adds = update is not None
        total = stream if update is None else stream + update
        return total, total.view_as(total)

    @staticmethod
    def backward(ctx: Any, stream_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient for both inputs."""
        result = stream_gradient + gradient
        return result, result if ctx.adds else None


class BesideNormFunction(Function):
    """RMSNorm of the residual stream, and addition to it; keeps the stream and one scale a row."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, update: Tensor, weight: Tensor, weight_gradient: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Return the sum, and what is normalised, which the update is no part of."""
        out = fused.residual_norm(stream, None, weight, epsilon)
        ctx.save_for_backward(stream, weight, out.scale)
        ctx.weight_gradient = weight_gradient
        return stream + update, out.normed

    @staticmethod
    def backward(ctx: Any, sum_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of stream and update."""
        stream, weight, scale = ctx.saved_tensors
        result = fused.residual_norm_backward(gradient, sum_gradient, stream, scale, weight, ctx.weight_gradient)
        return result, sum_gradient, None, None, None


class BesideLayerNormFunction(Function):
    """As `BesideNormFunction`, with LayerNorm; keeps the stream and two numbers a row."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, update: Tensor, affine: fused.Affine, totals: fused.Affine, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Return the sum, and what is normalised, which the update is no part of."""
        out = fused.residual_layer_norm(stream, None, affine, epsilon)
        ctx.save_for_backward(stream, out.mean, out.scale)
        ctx.weight, ctx.totals = affine.weight, totals
        return stream + update, out.normed

    @staticmethod
    def backward(ctx: Any, sum_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of stream and update."""
        result = fused.residual_layer_norm_backward(gradient, sum_gradient, ctx.saved_tensors, ctx.weight, ctx.totals)
        return result, sum_gradient, None, None, None


class ResidualLayerNormFunction(Function):
    """Addition to the residual stream and LayerNorm of the sum; keeps the sum and two numbers a row."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, update: Tensor | None, affine: fused.Affine, totals: fused.Affine, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and what is normalised."""
        out = fused.residual_layer_norm(stream, update, affine, epsilon)
        ctx.save_for_backward(out.stream, out.mean, out.scale)
        ctx.weight, ctx.totals, ctx.adds = affine.weight, totals, update is not None
        return out.stream, out.normed

    @staticmethod
    def backward(ctx: Any, stream_gradient: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return one gradient for both inputs."""
        result = fused.residual_layer_norm_backward(
            gradient, stream_gradient, ctx.saved_tensors, ctx.weight, ctx.totals
        )
        return result, result if ctx.adds else None, None, None, None


class LayerNormFunction(Function):
    """LayerNorm without a residual; keeps its input and two numbers a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, affine: fused.Affine, totals: fused.Affine, epsilon: float) -> Tensor:
        """Normalise x."""
        out = fused.residual_layer_norm(x, None, affine, epsilon)
        ctx.save_for_backward(x, out.mean, out.scale)
        ctx.weight, ctx.totals = affine.weight, totals
        return out.normed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x."""
        result = fused.residual_layer_norm_backward(gradient, None, ctx.saved_tensors, ctx.weight, ctx.totals)
        return result, None, None, None


class SplitHeadsFunction(Function):
    """Queries, keys and values out of what QKV makes, without rotation; forward makes views unless `apart`."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: tuple[int, int], head_dim: int, apart: bool) -> tuple[Tensor, ...]:  # noqa: FBT001
        """Return queries, keys and values, each [batch, tokens, heads, head_dim]."""
        parts = fused.split_heads(qkv, heads, head_dim=head_dim)
        # A view of the queries alone would keep the keys and values beside their copies.
        return tuple(part.contiguous() for part in parts) if apart else tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `qkv`."""
        return torch.cat(gradients, dim=2).flatten(2), None, None, None


class RotateFunction(Function):
    """Queries, keys and values out of what QKV makes, queries and keys rotated; keeps nothing but the angles.

    The input is rotated in place unless `apart`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        table: tuple[Tensor, Tensor],
        heads: tuple[int, int],
        apart: bool,  # noqa: FBT001
    ) -> tuple[Tensor, ...]:
        """Return queries, keys and values; the table has cosines and sines."""
        rotated, _ = fused.rotate(qkv, table, heads, None, apart=apart)
        ctx.save_for_backward(*table)
        return tuple(rotated)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `qkv`."""
        return fused.rotate_backward(fused.Rotated(*gradients), ctx.saved_tensors), None, None, None


class NormRotateFunction(Function):
    """As `RotateFunction`, queries and keys normalised before; keeps its input and one scale a head."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        table: tuple[Tensor, Tensor],
        heads: tuple[int, int],
        apart: bool,  # noqa: FBT001
        norm: fused.HeadNorm,
        totals: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, ...]:
        """Return queries, keys and values."""
        rotated, scales = fused.rotate(qkv, table, heads, norm, apart=apart)
        ctx.save_for_backward(qkv, *table, *scales)
        ctx.norm, ctx.totals = norm, totals
        return tuple(rotated)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `qkv`."""
        qkv, cosine, sine, *scales = ctx.saved_tensors
        result = fused.norm_rotate_backward(
            fused.Rotated(*gradients), (cosine, sine), qkv, tuple(scales), ctx.norm, ctx.totals
        )
        return result, None, None, None, None, None


class RotatePartFunction(Function):
    """As `RotateFunction`, where heads rotate in part, or a norm sees all heads of a token; copies queries and keys.

    It has no kernel: PyTorch's own operations run it everywhere. It keeps its input and the norm's scales.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        table: tuple[Tensor, Tensor],
        heads: tuple[int, int],
        head_dim: int,
        apart: bool,  # noqa: FBT001
        norm: fused.HeadNorm | None,
        totals: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        """Return queries, keys and values."""
        rotated, scales = fused.rotate_part(qkv, table, heads, head_dim, norm, apart=apart)
        ctx.save_for_backward(*table, *((qkv, *scales) if scales else ()))
        ctx.norm, ctx.totals = norm, totals
        return tuple(rotated)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `qkv`."""
        cosine, sine, *normed = ctx.saved_tensors
        result = fused.rotate_part_backward(fused.Rotated(*gradients), (cosine, sine), normed, ctx.norm, ctx.totals)
        return result, None, None, None, None, None, None


class GeGluFunction(Function):
    """GELU of a gate, times what it opens; keeps its input for the backward."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, kind: ActivationKind) -> Tensor:
        """Return gelu(gate) * up."""
        ctx.save_for_backward(gate_up)
        ctx.kind = kind
        return fused.geglu(gate_up, kind)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of `gate_up`."""
        return fused.geglu_backward(gradient, ctx.saved_tensors[0], ctx.kind), None


class SwiGluFunction(Function):
    """SwiGLU; keeps its input for the backward."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        """Return silu(gate) * up."""
        ctx.save_for_backward(gate_up)
        return fused.swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of `gate_up`."""
        return fused.swiglu_backward(gradient, ctx.saved_tensors[0])


class ActivationFunction(Function):
    """An activation without a gate; keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: ActivationKind) -> Tensor:
        """Return the activation of each value."""
        ctx.save_for_backward(x)
        ctx.kind = kind
        return fused.activate(x, kind)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of x."""
        return fused.activate_backward(gradient, ctx.saved_tensors[0], ctx.kind), None
