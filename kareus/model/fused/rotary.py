"""Rotary position embedding, joined with the norm of queries and keys where a model has one."""

from typing import NamedTuple

import torch
from torch import Tensor

from kareus.model.fused.dispatch import fused
from kareus.model.fused.norms import inverse_rms, norm_gradient


class HeadNorm(NamedTuple):
    """RMSNorm of each query and each key head, or of all heads of a token."""

    query_weight: Tensor
    """[head_dim], or [heads * head_dim] of a norm of all heads."""
    key_weight: Tensor
    epsilon: float


class Rotated(NamedTuple):
    """Queries, keys and values of attention, each [batch, tokens, heads, head_dim]."""

    query: Tensor
    key: Tensor
    value: Tensor


@fused
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
        scales = tuple(inverse_rms(t.float(), norm.epsilon) for t in (query, key))
        weights = (norm.query_weight, norm.key_weight)
        normed = [(t.float() * s).to(t.dtype) * w for t, s, w in zip((query, key), scales, weights, strict=True)]
        rotated = [_rotated(t, angles) for t in normed]
    if norm is None and not apart:
        for target, source in zip((query, key), rotated, strict=True):
            target.copy_(source)
        return Rotated(query, key, value), scales
    return Rotated(rotated[0], rotated[1], value.contiguous() if apart else value), scales


@fused
def rotate_backward(gradients: Rotated, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return the gradient of `qkv` of a `rotate` without norm, from those of its queries, keys and values."""
    turned = [_rotated_back(gradient, angles) for gradient in gradients[:2]]
    return torch.cat([*turned, gradients.value], dim=2).flatten(2)


@fused
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
        results.append(norm_gradient(wide * weight, normed, scale).to(x.dtype))
    return torch.cat([*results, gradients.value], dim=2).flatten(2)


def rotate_part(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    heads: tuple[int, int],
    head_dim: int,
    norm: HeadNorm | None,
    *,
    apart: bool,
) -> tuple[Rotated, tuple[Tensor, ...]]:
    """As `rotate`, into new memory, of the first values of each head, as many as there are angles; has no kernel.

    A norm that has more weights than a head has values is one over all heads of a token.
    """
    query, key, value = split_heads(qkv, heads, head_dim=head_dim)
    parts, scales = [query, key], tuple[Tensor, ...]()
    if norm is not None:
        weights = [_by_head(weight, head_dim) for weight in norm[:2]]
        scales = tuple(_scale(t, w, norm.epsilon) for t, w in zip(parts, weights, strict=True))
        parts = [(t.float() * s).to(t.dtype) * w for t, s, w in zip(parts, scales, weights, strict=True)]
    turned = [_turned(part, angles) for part in parts]
    # Values are a view where the input is kept for the norm anyway.
    return Rotated(turned[0], turned[1], value.contiguous() if apart or norm is None else value), scales


def rotate_part_backward(
    gradients: Rotated,
    angles: tuple[Tensor, Tensor],
    normed: list[Tensor],
    norm: HeadNorm | None,
    totals: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Return the gradient of `qkv` of a `rotate_part`, and add those of the norm's weights to `totals`.

    `normed` has its input and the scales where there was a norm.
    """
    back = (angles[0], -angles[1])
    results = [_turned(gradient, back) for gradient in gradients[:2]]
    if norm is not None:
        assert totals is not None
        qkv, *scales = normed
        heads = gradients.query.shape[2], gradients.key.shape[2]
        head_dim = gradients.query.shape[-1]
        inputs = split_heads(qkv, heads, head_dim=head_dim)[:2]
        results = [
            _norm_back(turned, x, scale, _by_head(weight, head_dim), _by_head(total, head_dim))
            for turned, x, scale, weight, total in zip(results, inputs, scales, norm[:2], totals, strict=True)
        ]
    return torch.cat([*results, gradients.value], dim=2).flatten(2)


def _by_head(weight: Tensor, head_dim: int) -> Tensor:
    """Weights of all heads as [heads, head_dim]; those that heads share as they are."""
    return weight if weight.numel() == head_dim else weight.view(-1, head_dim)


def _scale(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Scales of a norm over as many of the last dimensions as its weight has."""
    wide = x.float()
    seen = tuple(range(-weight.dim(), 0))
    return torch.rsqrt(wide.square().mean(seen, keepdim=True) + epsilon)


def _norm_back(turned: Tensor, x: Tensor, scale: Tensor, weight: Tensor, total: Tensor) -> Tensor:
    """Gradient of the input of a norm, over as many of the last dimensions as its weight has."""
    wide, normed = turned.float(), x.float() * scale
    total.add_((wide * normed).flatten(0, -1 - weight.dim()).sum(0))
    inner, seen = wide * weight, tuple(range(-weight.dim(), 0))
    return ((inner - normed * (inner * normed).mean(seen, keepdim=True)) * scale).to(x.dtype)


def _turned(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the first values of each head."""
    size = 2 * angles[0].shape[-1]
    return torch.cat((_rotated(x[..., :size], angles), x[..., size:]), dim=-1)


def split_heads(qkv: Tensor, heads: tuple[int, int], *, head_dim: int) -> Rotated:
    """Return views of [..., heads * head_dim]: queries, keys and values, each [..., heads, head_dim]."""
    query_heads, key_heads = heads
    by_head = qkv.view(*qkv.shape[:-1], -1, head_dim)
    return Rotated(*torch.split(by_head, [query_heads, key_heads, key_heads], dim=-2))


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = angles
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def _rotated_back(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = angles
    return _rotated(x, (cosine, -sine))
