"""Memory-bound computation of a block, each function one pass over its inputs and outputs; without autograd.

The operator graph counts the bytes of these functions: what each reads and writes, once. Sums are fp32; what leaves in
bf16 is rounded where the model's own definition rounds it (transformers' Llama and Qwen 3).
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Normed(NamedTuple):
    """Outputs of an RMSNorm over a residual stream."""

    stream: Tensor
    """The sum of stream and update, [..., size]; the stream itself where there was no update."""
    normed: Tensor
    """[..., size]."""
    scale: Tensor
    """1 / sqrt(mean square + epsilon) of each row, fp32, [..., 1]."""


class HeadNorm(NamedTuple):
    """RMSNorm of each query and each key head."""

    query_weight: Tensor
    """[head_dim]."""
    key_weight: Tensor
    epsilon: float


class Rotated(NamedTuple):
    """Queries, keys and values of attention, each [batch, tokens, heads, head_dim]."""

    query: Tensor
    key: Tensor
    value: Tensor


def residual_norm(stream: Tensor, update: Tensor | None, weight: Tensor, epsilon: float) -> Normed:
    """Add `update` to the residual stream and normalise the sum: (sum, sum / sqrt(mean(sum^2) + epsilon) * weight).

    Args:
        stream: [..., size].
        update: as `stream`, or None.
        weight: [size].
        epsilon: added to the mean square.
    """
    if update is not None:
        stream = stream + update
    wide = stream.float()
    scale = _scale(wide, epsilon)
    return Normed(stream, (wide * scale).to(stream.dtype) * weight, scale)


def residual_norm_backward(
    gradient: Tensor, stream_gradient: Tensor | None, stream: Tensor, scale: Tensor, weight: Tensor, total: Tensor
) -> Tensor:
    """Return the gradient of both inputs of `residual_norm`, and add that of its weight.

    Args:
        gradient: of what was normalised, [..., size].
        stream_gradient: of the sum, which the residual stream carries on; None where it ends.
        stream: the sum.
        scale: as `residual_norm` returned it.
        weight: [size].
        total: gradient of the weight, fp32, added to in place.
    """
    wide, normed = gradient.float(), stream.float() * scale
    total += (wide * normed).flatten(0, -2).sum(0)
    result = _norm_gradient(wide * weight, normed, scale)
    return (result if stream_gradient is None else result + stream_gradient).to(stream.dtype)


def rotate(
    qkv: Tensor, angles: tuple[Tensor, Tensor], heads: tuple[int, int], norm: HeadNorm | None, *, apart: bool
) -> tuple[Rotated, tuple[Tensor, ...]]:
    """Normalise queries and keys, if there is a norm of theirs, and rotate the halves of each head (RoPE).

    Without norm, and if they stay where they are, queries and keys are rotated in place, so that no copy of them is
    kept for the backward.

    Args:
        qkv: output of the QKV projection, [batch, tokens, heads * head_dim]: queries, keys, values.
        angles: cosines and sines, each [tokens, 1, head_dim / 2], fp32.
        heads: numbers of query and of key heads; there are as many value heads as key heads.
        norm: of queries and keys.
        apart: whether queries, keys and values are wanted in memory of their own, as to be sent to other GPUs.

    Returns:
        Queries, keys and values, views of `qkv` where they are not apart or normalised; and the scales of the norm.
    """
    query, key, value = split_heads(qkv, heads, head_dim=2 * angles[0].shape[-1])
    scales: tuple[Tensor, ...] = ()
    if norm is None:
        rotated = [_rotated(t, angles) for t in (query, key)]
    else:
        scales = tuple(_scale(t.float(), norm.epsilon) for t in (query, key))
        weights = (norm.query_weight, norm.key_weight)
        normed = [(t.float() * s).to(t.dtype) * w for t, s, w in zip((query, key), scales, weights, strict=True)]
        rotated = [_rotated(t, angles) for t in normed]
    if norm is None and not apart:
        for target, source in zip((query, key), rotated, strict=True):
            target.copy_(source)
        return Rotated(query, key, value), scales
    return Rotated(rotated[0], rotated[1], value.contiguous() if apart else value), scales


def rotate_backward(gradients: Rotated, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return the gradient of `qkv` of a `rotate` without norm, from those of its queries, keys and values."""
    turned = [_rotated_back(gradient, angles) for gradient in gradients[:2]]
    return torch.cat([*turned, gradients.value], dim=2).flatten(2)


def norm_rotate_backward(
    gradients: Rotated,
    angles: tuple[Tensor, Tensor],
    qkv: Tensor,
    scales: tuple[Tensor, ...],
    norm: HeadNorm,
    totals: tuple[Tensor, Tensor],
) -> Tensor:
    """Return the gradient of `qkv` of a `rotate` with norm, and add those of the norm's weights.

    Args:
        gradients: of queries, keys and values.
        angles: as in `rotate`.
        qkv: as `rotate` got it.
        scales: as `rotate` returned them.
        norm: as in `rotate`.
        totals: gradients of the weights of queries and keys, fp32, added to in place.
    """
    heads = gradients.query.shape[2], gradients.key.shape[2]
    inputs = split_heads(qkv, heads, head_dim=gradients.query.shape[-1])
    results = []
    for turned, x, scale, weight, total in zip(
        gradients[:2], inputs[:2], scales, (norm.query_weight, norm.key_weight), totals, strict=True
    ):
        wide, normed = _rotated_back(turned, angles).float(), x.float() * scale
        total.add_((wide * normed).flatten(0, -2).sum(0))
        results.append(_norm_gradient(wide * weight, normed, scale).to(x.dtype))
    return torch.cat([*results, gradients.value], dim=2).flatten(2)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of [..., 2 n], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of the input of `swiglu`."""
    gate, up = gate_up.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate)
    gate_gradient = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((gate_gradient, gradient * gate * sigmoid), dim=-1)


def split_heads(qkv: Tensor, heads: tuple[int, int], *, head_dim: int) -> Rotated:
    """Return views of [..., heads * head_dim]: queries, keys and values, each [..., heads, head_dim]."""
    query_heads, key_heads = heads
    by_head = qkv.view(*qkv.shape[:-1], -1, head_dim)
    return Rotated(*torch.split(by_head, [query_heads, key_heads, key_heads], dim=-2))


def _scale(wide: Tensor, epsilon: float) -> Tensor:
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)


def _norm_gradient(inner: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """Gradient of x, of which `normed` is x * scale and `inner` the gradient of that; fp32."""
    return (inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = angles
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def _rotated_back(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = angles
    return _rotated(x, (cosine, -sine))
