"""The functions of `kareus.model.fused` in PyTorch's own operations, which move several times the bytes.

For CPUs, and to trace: the operator graph counts what enters and leaves a function, and no temporaries.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kareus.model.config import ActivationKind

_APPROXIMATIONS = {ActivationKind.GELU: "none", ActivationKind.GELU_TANH: "tanh"}
"""What PyTorch calls them."""


class Normed(NamedTuple):
    """Outputs of an RMSNorm over a residual stream."""

    stream: Tensor
    """The sum of stream and update, [..., size]; the stream itself where there was no update."""
    normed: Tensor
    """[..., size]."""
    scale: Tensor
    """1 / sqrt(mean square + epsilon) of each row, fp32, [..., 1]."""


class LayerNormed(NamedTuple):
    """Outputs of a LayerNorm over a residual stream."""

    stream: Tensor
    """As in `Normed`; so is the next."""
    normed: Tensor
    mean: Tensor
    """Mean of each row, fp32, [..., 1]."""
    scale: Tensor
    """1 / sqrt(variance + epsilon) of each row, fp32, [..., 1]."""


class Affine(NamedTuple):
    """Weight and, if it has one, offset of a LayerNorm, or their gradients, each [size]."""

    weight: Tensor
    bias: Tensor | None


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
    """See `kareus.model.fused`."""
    if update is not None:
        stream = stream + update
    wide = stream.float()
    scale = _scale(wide, epsilon)
    return Normed(stream, (wide * scale).to(stream.dtype) * weight, scale)


def residual_norm_backward(
    gradient: Tensor, stream_gradient: Tensor | None, stream: Tensor, scale: Tensor, weight: Tensor, total: Tensor
) -> Tensor:
    """See `kareus.model.fused`."""
    wide, normed = gradient.float(), stream.float() * scale
    total += (wide * normed).flatten(0, -2).sum(0)
    result = _norm_gradient(wide * weight, normed, scale)
    return (result if stream_gradient is None else result + stream_gradient).to(stream.dtype)


def residual_layer_norm(stream: Tensor, update: Tensor | None, affine: Affine, epsilon: float) -> LayerNormed:
    """See `kareus.model.fused`."""
    if update is not None:
        stream = stream + update
    wide = stream.float()
    mean = wide.mean(-1, keepdim=True)
    centred = wide - mean
    scale = _scale(centred, epsilon)
    normed = centred * scale * affine.weight
    if affine.bias is not None:
        normed = normed + affine.bias
    return LayerNormed(stream, normed.to(stream.dtype), mean, scale)


def residual_layer_norm_backward(
    gradient: Tensor,
    stream_gradient: Tensor | None,
    kept: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    totals: Affine,
) -> Tensor:
    """See `kareus.model.fused`."""
    stream, mean, scale = kept
    wide, normed = gradient.float(), (stream.float() - mean) * scale
    totals.weight.add_((wide * normed).flatten(0, -2).sum(0))
    if totals.bias is not None:
        totals.bias.add_(wide.flatten(0, -2).sum(0))
    inner = wide * weight
    result = _norm_gradient(inner - inner.mean(-1, keepdim=True), normed, scale)
    return (result if stream_gradient is None else result + stream_gradient).to(stream.dtype)


def rotate(
    qkv: Tensor, angles: tuple[Tensor, Tensor], heads: tuple[int, int], norm: HeadNorm | None, *, apart: bool
) -> tuple[Rotated, tuple[Tensor, ...]]:
    """See `kareus.model.fused`."""
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
    """See `kareus.model.fused`."""
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
    """See `kareus.model.fused`."""
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
    """See `kareus.model.fused`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """See `kareus.model.fused`."""
    gate, up = gate_up.chunk(2, dim=-1)
    sigmoid = torch.sigmoid(gate)
    gate_gradient = gradient * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((gate_gradient, gradient * gate * sigmoid), dim=-1)


def activate(x: Tensor, kind: ActivationKind) -> Tensor:
    """See `kareus.model.fused`."""
    if kind is ActivationKind.SQUARED_RELU:
        return functional.relu(x).square()
    return functional.gelu(x, approximate=_APPROXIMATIONS[kind])


def activate_backward(gradient: Tensor, x: Tensor, kind: ActivationKind) -> Tensor:
    """See `kareus.model.fused`."""
    if kind is ActivationKind.SQUARED_RELU:
        return gradient * 2 * functional.relu(x)
    x_gradient: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=_APPROXIMATIONS[kind])
    return x_gradient


def exponentials(logits: Tensor, maximum: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.fused`."""
    total = _exponentials(logits, maximum).sum(-1)
    return total, logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1).float() * mine


def mean_loss(total: Tensor, labelled: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """See `kareus.model.fused`."""
    log_sum_exp = total.log() + maximum
    return (log_sum_exp - labelled).mean(), log_sum_exp


def log_sum_exp(logits: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of each token's logits, and the logit of its label."""
    maximum = logits.amax(-1).float()
    total, labelled = exponentials(logits, maximum, rows, mine)
    return total.log() + maximum, labelled


def cross_entropy_backward_(logits: Tensor, log_sum_exp: Tensor, rows: Tensor, mine: Tensor, factor: Tensor) -> None:
    """See `kareus.model.fused`."""
    softmax = _exponentials(logits, log_sum_exp)
    softmax.scatter_add_(-1, rows.unsqueeze(-1), -mine.unsqueeze(-1).float())
    logits.copy_(softmax.mul_(factor))


def embed(ids: Tensor, weight: Tensor, first: int, added: Tensor | None) -> Tensor:
    """See `kareus.model.fused`."""
    rows, mine = own_rows(ids, weight.shape[0], first)
    looked_up = functional.embedding(rows, weight) * mine.unsqueeze(-1)
    return looked_up if added is None else looked_up + added


def embed_backward(gradient: Tensor, ids: Tensor, first: int, total: Tensor) -> None:
    """See `kareus.model.fused`."""
    rows, mine = own_rows(ids, total.shape[0], first)
    update = (gradient * mine.unsqueeze(-1)).flatten(0, -2).float()
    total.index_add_(0, rows.flatten(), update)


def own_rows(ids: Tensor, rows: int, first: int) -> tuple[Tensor, Tensor]:
    """Row of each id in this GPU's shard, which begins with id `first` (0 for ids of others), and a mask of its ids."""
    shifted = ids - first
    mine = (shifted >= 0) & (shifted < rows)
    return shifted * mine, mine


def split_heads(qkv: Tensor, heads: tuple[int, int], *, head_dim: int) -> Rotated:
    """Return views of [..., heads * head_dim]: queries, keys and values, each [..., heads, head_dim]."""
    query_heads, key_heads = heads
    by_head = qkv.view(*qkv.shape[:-1], -1, head_dim)
    return Rotated(*torch.split(by_head, [query_heads, key_heads, key_heads], dim=-2))


def _exponentials(logits: Tensor, less: Tensor) -> Tensor:
    """Return exp(logits - less) in fp32, [..., vocabulary rows]; the copy is all the memory that it takes."""
    return logits.to(torch.float32, copy=True).sub_(less.unsqueeze(-1)).exp_()


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
