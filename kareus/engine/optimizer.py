"""AdamW over fp32 copies of a stage's weights, with gradients from the engine's fp32 buffers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kareus.engine.clipping import clip, gradient_norm
from kareus.engine.gradients import weight_gradients
from kareus.engine.ranks import Lines
from kareus.engine.settings import OptimizerSettings
from kareus.model.weights import pieces
from kareus.workload.config import Model

_MATRIX = 2
"""Dimensions of the weights that decay."""


@dataclass(frozen=True, slots=True)
class _Weight:
    name: str
    parameter: nn.Parameter
    """What the model computes with."""
    master: nn.Parameter
    """In fp32; the parameter itself where the model is."""
    gradient: Tensor


class Optimizer:
    """Updates one stage's weights."""

    def __init__(self, stage: nn.Module, settings: OptimizerSettings) -> None:
        """Optimize all weights of `stage`, as they are now."""
        gradients = dict(weight_gradients(stage))
        self._weights = [_Weight(n, p, _master(p), gradients[n]) for n, p in stage.named_parameters()]
        for weight in self._weights:
            weight.master.grad = weight.gradient
        decay = [w.master for w in self._weights if w.master.dim() == _MATRIX]
        others = [w.master for w in self._weights if w.master.dim() != _MATRIX]
        self._adamw = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
        )
        self._largest_norm = settings.largest_norm

    def step(self, norm: Tensor, learning_rate: float) -> None:
        """Clip by the norm of the whole model's gradient, update, and set gradients to zero.

        Raises:
            KareusError: the norm is infinite or not a number; nothing is updated.
        """
        gradients = [weight.gradient for weight in self._weights]
        clip(gradients, norm, self._largest_norm)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        for weight in self._weights:
            self._publish(weight)
            weight.gradient.zero_()

    def weights(self) -> dict[str, Tensor]:
        """Weights in fp32, by name."""
        return {weight.name: weight.master.detach() for weight in self._weights}

    def state(self) -> Mapping[str, Any]:
        """State of AdamW."""
        state: Mapping[str, Any] = self._adamw.state_dict()
        return state

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from what `weights` and `state` returned."""
        for weight in self._weights:
            weight.master.data.copy_(weights[weight.name])
            self._publish(weight)
        self._adamw.load_state_dict(dict(state))

    def _publish(self, weight: _Weight) -> None:
        if weight.master is not weight.parameter:
            weight.parameter.data.copy_(weight.master)


def whole_norm(stage: nn.Module, model: Model, lines: Lines, *, counts_head: bool) -> Tensor:
    """Norm of the whole model's gradient, after all sums.

    Args:
        stage: of this rank.
        model: the architecture.
        lines: groups of this rank.
        counts_head: False on the last stage if its head is a copy of the first stage's embedding.
    """
    named = [(n, g) for n, g in weight_gradients(stage) if counts_head or n != "head.lm_head.weight"]
    divided = {n for n, _ in named if any(p.divided is not None for p in pieces(model, n, 0))}
    return gradient_norm(
        [gradient for name, gradient in named if name in divided],
        [gradient for name, gradient in named if name not in divided],
        tp=lines.tensor,
        pp=lines.stages,
    )


def _master(parameter: nn.Parameter) -> nn.Parameter:
    return parameter if parameter.dtype is torch.float32 else nn.Parameter(parameter.detach().float())
