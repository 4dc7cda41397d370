"""LayerNorm over the residual stream, joined with the addition before it."""

from typing import NamedTuple

from torch import Tensor

from kareus.model.fused.dispatch import fused
from kareus.model.fused.norms import inverse_rms, norm_gradient


class LayerNormed(NamedTuple):
    """Outputs of a LayerNorm over a residual stream."""

    stream: Tensor
    """The sum of stream and update, [..., size]; the stream itself where there was no update."""
    normed: Tensor
    """[..., size]."""
    mean: Tensor
    """Mean of each row, fp32, [..., 1]."""
    scale: Tensor
    """1 / sqrt(variance + epsilon) of each row, fp32, [..., 1]."""


class Affine(NamedTuple):
    """Weight and, if it has one, offset of a LayerNorm, or their gradients, each [size]."""

    weight: Tensor
    bias: Tensor | None


@fused
def residual_layer_norm(stream: Tensor, update: Tensor | None, affine: Affine, epsilon: float) -> LayerNormed:
    """Add `update` to the residual stream and normalise the sum: (sum, (sum - mean) / deviation * weight + bias).

    Args:
        stream: [..., size].
        update: as `stream`, or None.
        affine: weight and offset, which may be None.
        epsilon: added to the variance.
    """
    if update is not None:
        stream = stream + update
    wide = stream.float()
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    scale = inverse_rms(centred, epsilon)
    normed = centred * scale * affine.weight
    if affine.bias is not None:
        normed = normed + affine.bias
    return LayerNormed(stream, normed.to(stream.dtype), mean, scale)


@fused
def residual_layer_norm_backward(
    gradient: Tensor,
    stream_gradient: Tensor | None,
    kept: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    totals: Affine,
) -> Tensor:
    """Return the gradient of both inputs of `residual_layer_norm`, and add those of its weight and offset.

    Args:
        gradient: of what was normalised, [..., size].
        stream_gradient: of the sum, which the residual stream carries on; None where it ends.
        kept: the sum, means and scales, as `residual_layer_norm` returned them.
        weight: [size].
        totals: gradients of weight and offset, fp32, added to in place.
    """
    stream, mean, scale = kept
    wide, normed = gradient.float(), (stream.float() - mean) * scale
    totals.weight.add_((wide * normed).flatten(0, -2).sum(0))
    if totals.bias is not None:
        totals.bias.add_(wide.flatten(0, -2).sum(0))
    inner = wide * weight
    result = norm_gradient(inner - inner.mean(-1, keepdim=True), normed, scale)
    return (result if stream_gradient is None else result + stream_gradient).to(stream.dtype)
