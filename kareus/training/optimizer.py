"""AdamW over fp32 copies of the weights that this rank optimizes, with gradients from the engine's fp32 buffers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kareus.errors import ArtifactError
from kareus.launch.ranks import Lines
from kareus.model.config import Model
from kareus.model.weights import pieces
from kareus.training.clipping import clip, gradient_norm
from kareus.training.settings import OptimizerSettings
from kareus.training.sharding import Division, Part

_MATRIX = 2
"""Dimensions of the weights that decay."""


class Optimizer:
    """Updates one stage's weights, of which other replicas may update other parts."""

    def __init__(self, division: Division, settings: OptimizerSettings) -> None:
        """Optimize this rank's part of the weights of `division`, as they are now."""
        self._division = division
        self._masters = {part.name: _master(part) for part in division.parts}
        decay = [self._masters[part.name] for part in division.parts if len(part.shape) == _MATRIX]
        others = [self._masters[part.name] for part in division.parts if len(part.shape) != _MATRIX]
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
        clip([part.gradient for part in self._division.parts], norm, self._largest_norm)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._publish()
        self._division.clear()

    def is_finite(self) -> bool:
        """Return whether all weights and moments that this rank keeps are finite numbers."""
        moments = [value for state in self._adamw.state.values() for value in state.values()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in (*self._masters.values(), *moments))

    def weights(self) -> dict[str, Tensor]:
        """What this rank optimizes of each weight, in fp32, [elements], by name."""
        return {name: master.detach() for name, master in self._masters.items()}

    def state(self) -> Mapping[str, Any]:
        """State of AdamW."""
        state: Mapping[str, Any] = self._adamw.state_dict()
        return state

    def load(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from what `weights` and `state` returned; every rank calls this.

        Raises:
            ArtifactError: the weights have other names or sizes than those of this rank.
        """
        own = {name: master.shape for name, master in self._masters.items()}
        if own != {name: weight.shape for name, weight in weights.items()}:
            raise ArtifactError(
                "checkpoint: has weights of other names or sizes than this rank; begin in a new folder, or resume with "
                "the version of Kareus that wrote it."
            )
        for name, master in self._masters.items():
            master.data.copy_(weights[name])
        self._publish()
        self._adamw.load_state_dict(dict(state))

    def _publish(self) -> None:
        """Let the model compute with the new weights, on all replicas."""
        for part in self._division.parts:
            part.weight.copy_(self._masters[part.name].detach())  # onto itself where the model is in fp32
        self._division.gather()


def whole_norm(division: Division, model: Model, lines: Lines, *, counts_head: bool) -> Tensor:
    """Norm of the whole model's gradient, after all sums.

    Args:
        division: of this rank's stage.
        model: the architecture.
        lines: groups of this rank.
        counts_head: False on the last stage if its head is a copy of the first stage's embedding.
    """
    named = [(p.name, p.gradient) for p in division.parts if counts_head or p.name != "head.lm_head.weight"]
    divided = {n for n, _ in named if any(p.divided is not None for p in pieces(model, n, 0))}
    return gradient_norm(
        [gradient for name, gradient in named if name in divided],
        [gradient for name, gradient in named if name not in divided],
        tp=lines.tensor,
        pp=lines.stages,
        dp=lines.sharers,
    )


def _master(part: Part) -> nn.Parameter:
    """A copy of `part` in fp32 that has its gradient; where the model is in fp32, the part itself."""
    master = nn.Parameter(part.weight.float())
    master.grad = part.gradient
    return master
