"""Memory-bound operators of a model, each function one pass over its inputs and outputs; without autograd.

On GPUs these are Triton's kernels (`kareus.model.fused_kernels`), on CPUs, and where there is no Triton, PyTorch's own
operations (`kareus.model.eager`). The operator graph counts the bytes of the former: inputs and outputs, once each.

Sums are fp32; what leaves in bf16 is rounded where the model's own definition rounds it (transformers' Llama and
Qwen 3).
"""

import logging
import os
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from torch import Tensor

from kareus.model import eager
from kareus.model.config import ActivationKind
from kareus.model.eager import Affine, HeadNorm, LayerNormed, Normed, Rotated

__all__ = ["Affine", "HeadNorm", "LayerNormed", "Normed", "Rotated"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton interprets its kernels on CPUs, to test them."""

logger = logging.getLogger(__name__)


@cache
def _implementation(device: str) -> ModuleType:
    """Return the module that computes on devices of this type; warn once if a GPU lacks the fused one."""
    if device == "cpu" and not INTERPRETED:
        return eager  # a training on CPUs says so; tracing, which computes nothing, comes here too
    if find_spec("triton") is None:
        logger.warning(
            "%s: no Triton, so that memory-bound operators move several times the bytes that are planned; install the "
            "PyTorch for this GPU, which brings Triton along.",
            device,
        )
        return eager
    from kareus.model import fused_kernels  # noqa: PLC0415 - PyTorch for CPUs comes without Triton

    return fused_kernels


def residual_norm(stream: Tensor, update: Tensor | None, weight: Tensor, epsilon: float) -> Normed:
    """Add `update` to the residual stream and normalise the sum: (sum, sum / sqrt(mean(sum^2) + epsilon) * weight).

    Args:
        stream: [..., size].
        update: as `stream`, or None.
        weight: [size].
        epsilon: added to the mean square.
    """
    result: Normed = _implementation(stream.device.type).residual_norm(stream, update, weight, epsilon)
    return result


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
    result: Tensor = _implementation(stream.device.type).residual_norm_backward(
        gradient, stream_gradient, stream, scale, weight, total
    )
    return result


def residual_layer_norm(stream: Tensor, update: Tensor | None, affine: Affine, epsilon: float) -> LayerNormed:
    """Add `update` to the residual stream and normalise the sum: (sum, (sum - mean) / deviation * weight + bias).

    Args:
        stream: [..., size].
        update: as `stream`, or None.
        affine: weight and offset, which may be None.
        epsilon: added to the variance.
    """
    result: LayerNormed = _implementation(stream.device.type).residual_layer_norm(stream, update, affine, epsilon)
    return result


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
    result: Tensor = _implementation(gradient.device.type).residual_layer_norm_backward(
        gradient, stream_gradient, kept, weight, totals
    )
    return result


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
    result: tuple[Rotated, tuple[Tensor, ...]] = _implementation(qkv.device.type).rotate(
        qkv, angles, heads, norm, apart=apart
    )
    return result


def rotate_backward(gradients: Rotated, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return the gradient of `qkv` of a `rotate` without norm, from those of its queries, keys and values."""
    result: Tensor = _implementation(gradients.query.device.type).rotate_backward(gradients, angles)
    return result


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
    result: Tensor = _implementation(qkv.device.type).norm_rotate_backward(gradients, angles, qkv, scales, norm, totals)
    return result


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of [..., 2 n], gate first."""
    result: Tensor = _implementation(gate_up.device.type).swiglu(gate_up)
    return result


def swiglu_backward(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """Return the gradient of the input of `swiglu`."""
    result: Tensor = _implementation(gate_up.device.type).swiglu_backward(gradient, gate_up)
    return result


def activate(x: Tensor, kind: ActivationKind) -> Tensor:
    """Return an activation without a gate of each value of x."""
    result: Tensor = _implementation(x.device.type).activate(x, kind)
    return result


def activate_backward(gradient: Tensor, x: Tensor, kind: ActivationKind) -> Tensor:
    """Return the gradient of the input of `activate`."""
    result: Tensor = _implementation(x.device.type).activate_backward(gradient, x, kind)
    return result


def maxima(logits: Tensor) -> Tensor:
    """Return the largest logit of each token here, [..., rows of the vocabulary] to [...], fp32; one PyTorch kernel."""
    return logits.amax(-1).float()


def exponentials(logits: Tensor, maximum: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of exp(logit - maximum) of each token, and the logit of its label, 0 where that is not here.

    Args:
        logits: [..., rows of the vocabulary].
        maximum: of each token, [...], fp32.
        rows: of the labels, [...].
        mine: whether a label is among this GPU's rows, [...].
    """
    result: tuple[Tensor, Tensor] = _implementation(logits.device.type).exponentials(logits, maximum, rows, mine)
    return result


def mean_loss(total: Tensor, labelled: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy over tokens and the log-sum-exp of each; one program on a GPU.

    Args:
        total: sum of exponentials over the whole vocabulary, [...], fp32.
        labelled: logit of the label, [...].
        maximum: largest logit, [...].
    """
    result: tuple[Tensor, Tensor] = _implementation(total.device.type).mean_loss(total, labelled, maximum)
    return result


def cross_entropy(logits: Tensor, rows: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy and the log-sum-exp of each token, where one GPU has the whole vocabulary.

    Logits are read once; see `exponentials` for the arguments.
    """
    log_sum_exp, labelled = _implementation(logits.device.type).log_sum_exp(logits, rows, mine)
    return (log_sum_exp - labelled).mean(), log_sum_exp


def cross_entropy_backward_(logits: Tensor, log_sum_exp: Tensor, rows: Tensor, mine: Tensor, factor: Tensor) -> None:
    """Replace logits by the gradient of their cross-entropy, (softmax - 1 for the label) * factor.

    Args:
        logits: as in `exponentials`, changed in place; likewise `rows` and `mine`.
        log_sum_exp: of each token over the whole vocabulary, [...], fp32.
        rows: see `logits`.
        mine: see `logits`.
        factor: gradient of the loss over the number of tokens, fp32, [].
    """
    _implementation(logits.device.type).cross_entropy_backward_(logits, log_sum_exp, rows, mine, factor)


def embed(ids: Tensor, weight: Tensor, first: int, added: Tensor | None = None) -> Tensor:
    """Look up ids in rows of an embedding; zero where they are elsewhere.

    Args:
        ids: [batch, tokens].
        weight: rows `first` and after of the embedding, [rows, size].
        first: see `weight`.
        added: to what is looked up, [tokens, size]; None adds nothing.
    """
    result: Tensor = _implementation(weight.device.type).embed(ids, weight, first, added)
    return result


def embed_backward(gradient: Tensor, ids: Tensor, first: int, total: Tensor) -> None:
    """Add the gradient of `embed`, [..., size], to that of the rows, `total`, [rows, size], fp32."""
    _implementation(gradient.device.type).embed_backward(gradient, ids, first, total)
