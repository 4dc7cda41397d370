"""AdamW on fp32 copies of the weights that this rank optimizes; it reads gradients from the runtime's fp32 buffers.

Gradients are clipped by the norm of the whole model's, of which each rank holds a shard.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kareus.errors import KareusError
from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Mesh
from kareus.model.config import Model
from kareus.model.experts import Experts
from kareus.model.weights import is_of_experts, moves_choices, pieces
from kareus.training.checkpoint import StateSlice
from kareus.training.full_sharding import FullSharding
from kareus.training.optimizer_sharding import OptimizerSharding, WeightShard
from kareus.training.settings import OptimizerSettings
from kareus.training.weight_slices import held_boxes

FUSED = ("cpu", "cuda")
"""Types of devices that have a fused kernel for AdamW."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names that PyTorch gives the moments of AdamW."""
_MATRIX = 2
"""Number of dimensions of the weights that decay."""


class Optimizer:
    """Updates this rank's shard of one stage's weights."""

    def __init__(
        self,
        sharding: OptimizerSharding | FullSharding,
        settings: OptimizerSettings,
        experts: Experts | None = None,
        tokens: int = 0,
    ) -> None:
        """Optimize this rank's shard of the weights, as they are now.

        Args:
            sharding: has them.
            settings: of AdamW.
            experts: of the model's blocks, if there are any.
            tokens: of an iteration, each of which chooses experts in every block.
        """
        self._sharding = sharding
        self._bias_step = 0.0 if experts is None else experts.bias_step
        self._mean_load = 0.0 if experts is None else tokens * experts.per_token / experts.count
        self._masters = {shard.name: _master(shard) for shard in sharding.shards}
        decay = [self._masters[shard.name] for shard in sharding.shards if len(shard.shape) == _MATRIX]
        others = [self._masters[shard.name] for shard in sharding.shards if len(shard.shape) != _MATRIX]
        self._adamw = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            fused=all(master.device.type in FUSED for master in self._masters.values()),
        )
        self._largest_norm = settings.largest_norm

    def step(self, norm: Tensor, learning_rate: float) -> None:
        """Clip by the norm of the whole model's gradient, update, and set gradients to zero.

        Raises:
            KareusError: the norm is infinite or not a number; nothing is updated.
        """
        fewer = self._fewer_tokens()  # of loads that are not clipped
        clip(self._sharding.own_gradients, norm, self._largest_norm)
        for shard, direction in fewer:
            self._masters[shard.name].data.add_(direction, alpha=self._bias_step)
            shard.gradient.zero_()  # numbers of tokens, which AdamW is not to see
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self.publish()
        self._sharding.zero_gradients()

    def _fewer_tokens(self) -> list[tuple[WeightShard, Tensor]]:
        """Return what experts are chosen by, and which way each moves: up where fewer tokens chose it, 1, else -1.

        That balances loads without a loss (DeepSeek-V3, section 2.1.2).
        """
        chosen_by = [shard for shard in self._sharding.shards if self._bias_step and moves_choices(shard.name)]
        return [(shard, torch.sign(self._mean_load - shard.gradient)) for shard in chosen_by]

    def is_finite(self) -> bool:
        """Return whether all weights and moments that this rank keeps are finite numbers."""
        moments = [value for state in self._adamw.state.values() for value in state.values()]
        return all(bool(torch.isfinite(tensor).all()) for tensor in (*self._masters.values(), *moments))

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's shard of each weight, in fp32, [elements], by name."""
        return {name: master.detach() for name, master in self._masters.items()}

    def states(self) -> dict[str, dict[str, Tensor]]:
        """Return this rank's shard of the weights and of both moments, fp32, [elements], by state and by weight.

        There are no moments before the first step.
        """
        states = {"weight": self.weights()}
        for moment in MOMENTS:
            tensors = {name: self._adamw.state[master].get(moment) for name, master in self._masters.items()}
            states[moment] = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return states

    def slices(self, model: Model, mesh: Mesh) -> dict[StateSlice, Tensor]:
        """Return views of this rank's states, by what they are of the whole model's.

        Args:
            model: the architecture.
            mesh: of this rank.
        """
        states = self.states()
        return {
            StateSlice(state, slice_box.name, slice_box.box): shards[shard.name][slice_box.start :][
                : slice_box.box.elements
            ].view(slice_box.box.sizes)
            for shard in self._sharding.shards
            for slice_box in held_boxes(model, shard.name, shard.start, shard.weight.numel(), mesh)
            for state, shards in states.items()
        }

    def resume(self, steps: int) -> None:
        """Make the moments as they are after a number of steps, for the caller to fill; `publish` comes next."""
        settings = self._adamw.state_dict()
        masters = [master for group in self._adamw.param_groups for master in group["params"]]
        settings["state"] = {
            number: {"step": torch.tensor(float(steps))} | {moment: torch.zeros_like(master) for moment in MOMENTS}
            for number, master in enumerate(masters)
        }
        self._adamw.load_state_dict(settings)

    def publish(self) -> None:
        """Copy the updated weights into the model on all replicas; every rank calls this."""
        for shard in self._sharding.shards:
            shard.weight.copy_(self._masters[shard.name].detach())  # onto itself where the model is in fp32
        self._sharding.all_gather_weights()


def whole_norm(
    sharding: OptimizerSharding | FullSharding, model: Model, groups: ProcessGroups, *, counts_head: bool
) -> Tensor:
    """Return the norm of the whole model's gradient, after all sums.

    Args:
        sharding: of this rank's stage.
        model: the architecture.
        groups: of this rank.
        counts_head: False on the last stage if its head is a copy of the first stage's embedding.
    """
    shards = [shard for shard in sharding.shards if not moves_choices(shard.name)]  # which have no gradient
    named = [(p.name, p.gradient) for p in shards if counts_head or p.name != "head.lm_head.weight"]
    of_experts = {n for n, _ in named if is_of_experts(n)}
    divided = {n for n, _ in named if n not in of_experts and any(p.divided is not None for p in pieces(model, n, 0))}
    return gradient_norm(
        [gradient for name, gradient in named if name in divided],
        [gradient for name, gradient in named if name not in divided | of_experts],
        [gradient for name, gradient in named if name in of_experts],
        tp=groups.tensor,
        pp=groups.pipeline,
        dp=groups.optimizer_shards,
        ep=(groups.experts, groups.expert_shards),
    )


def _master(shard: WeightShard) -> nn.Parameter:
    """Return a copy of `shard` in fp32 that has its gradient; where the model is in fp32, the shard itself."""
    master = nn.Parameter(shard.weight.float())
    master.grad = shard.gradient
    return master


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
