"""Gradient clipping by the norm of the whole model's gradient, of which each rank holds a shard."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kareus.errors import KareusError

_TINY = 1e-6
"""Added to the norm, as `torch.nn.utils.clip_grad_norm_` does."""


def gradient_norm(
    sharded: Iterable[Tensor],
    replicated: Iterable[Tensor],
    experts: Iterable[Tensor] = (),
    *,
    tp: dist.ProcessGroup | None,
    pp: dist.ProcessGroup | None,
    dp: dist.ProcessGroup | None,
    ep: Sequence[dist.ProcessGroup | None] = (),
) -> Tensor:
    """Return the Euclidean norm of the model's gradient, fp32, the same on every rank.

    Args:
        sharded: gradients of weights that are divided over `tp`.
        replicated: gradients of weights that all ranks of `tp` hold alike (norms), summed over it already; they count
            once. A weight that two stages hold (tied embeddings) is to be given on one of them.
        experts: gradients of weights that are divided over `ep` alone.
        tp: ranks that share every layer; None if there is one.
        pp: ranks that hold the stages; None if there is one.
        dp: replicas that each hold a part of the gradients; None if each holds them whole.
        ep: groups of ranks over which gradients of experts are divided.
    """
    squares = _squares(sharded)
    if tp is not None:
        dist.all_reduce(squares, group=tp)
    squares = squares + _squares(replicated).to(squares.device)
    if dp is not None:
        dist.all_reduce(squares, group=dp)
    of_experts = _squares(experts, squares.device).to(squares.device)
    for group in ep:
        if group is not None:
            dist.all_reduce(of_experts, group=group)
    squares = squares + of_experts
    if pp is not None:
        dist.all_reduce(squares, group=pp)
    return squares.sqrt()


def clip(gradients: Iterable[Tensor], norm: Tensor, largest: float) -> None:
    """Scale `gradients`, of one device, in place so that the norm of the whole model's is at most `largest`.

    Raises:
        KareusError: the norm is infinite or not a number.
    """
    if not torch.isfinite(norm):
        raise KareusError(
            f"gradient: its norm is {norm.item()}; lower the learning rate, or resume from an earlier checkpoint."
        )
    scale = (largest / (norm + _TINY)).clamp(max=1.0)
    scaled = list(gradients)
    torch._foreach_mul_(scaled, scale.to(scaled[0].device))


def _squares(gradients: Iterable[Tensor], device: torch.device | None = None) -> Tensor:
    """Return the sum of squares, fp32; a scalar on the gradients' device, or on `device` where there are none."""
    given = list(gradients)
    tensors = [gradient for gradient in given if gradient.numel()]  # shards may have none of a weight
    norms = torch._foreach_norm(tensors, dtype=torch.float32) if tensors else ()
    return torch.stack(norms).square().sum() if norms else torch.zeros((), device=given[0].device if given else device)
