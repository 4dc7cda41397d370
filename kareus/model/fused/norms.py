"""RMSNorm over the residual stream, joined with the addition before it."""

from typing import NamedTuple

import torch
from torch import Tensor

from kareus.model.fused.dispatch import fused


class Normed(NamedTuple):
    """Outputs of an RMSNorm over a residual stream."""

    stream: Tensor
    """The sum of stream and update, [..., size]; the stream itself where there was no update."""
    normed: Tensor
    """[..., size]."""
    scale: Tensor
    """1 / sqrt(mean square + epsilon) of each row, fp32, [..., 1]."""


@fused
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
    scale = inverse_rms(wide, epsilon)
    return Normed(stream, (wide * scale).to(stream.dtype) * weight, scale)


@fused
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
    result = norm_gradient(wide * weight, normed, scale)
    return (result if stream_gradient is None else result + stream_gradient).to(stream.dtype)


def inverse_rms(wide: Tensor, epsilon: float) -> Tensor:
    """Return 1 / sqrt(mean square + epsilon) of each row, [..., size] to [..., 1]."""
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)


def norm_gradient(inner: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """Return the gradient of x, of which `normed` is x * scale and `inner` the gradient of that; fp32."""
    return (inner - normed * (inner * normed).mean(-1, keepdim=True)) * scale
