"""AdamW over the weights of a stage."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.errors import KareusError
from kareus.model.communication import Mesh
from kareus.model.expert_layers import Choose
from kareus.model.experts import Experts, RouterScore
from kareus.model.layers import Linear
from kareus.training.optimizer import Optimizer
from kareus.training.optimizer_sharding import OptimizerSharding
from kareus.training.settings import OptimizerSettings

SETTINGS = OptimizerSettings()


class Named(TorchDispatchMode):
    """Collects the names of the operations that PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_a_step_is_one_fused_kernel_that_updates_as_adamw_does() -> None:
    linear = Linear(24, 8, torch.float32, bias=True)
    weights = [torch.nn.Parameter(weight.detach().clone()) for weight in linear.parameters()]
    groups = [
        {"params": weights[:1], "weight_decay": SETTINGS.weight_decay},
        {"params": weights[1:], "weight_decay": 0.0},
    ]
    betas = (SETTINGS.beta1, SETTINGS.beta2)
    plain = torch.optim.AdamW(groups, lr=1e-2, betas=betas, eps=SETTINGS.epsilon, foreach=False, fused=False)
    sharding = OptimizerSharding(linear, None)
    optimizer = Optimizer(sharding, SETTINGS)
    for _ in range(3):
        for shard, weight in zip(sharding.shards, weights, strict=True):
            shard.gradient.normal_()
            weight.grad = shard.gradient.view_as(weight) / (shard.gradient.new_tensor(4.0) + 1e-6)
        with Named() as operations:
            optimizer.step(torch.tensor(4.0), 1e-2)  # clipped to a norm of 1
        plain.step()
    assert [name for name in operations.names if "adam" in name] == ["aten::_fused_adamw_"] * 2  # one for each group
    for weight, found in zip(weights, linear.parameters(), strict=True):
        torch.testing.assert_close(found, weight, rtol=1e-5, atol=1e-6)


def test_choices_move_to_experts_that_fewer_tokens_chose() -> None:
    """By the same step whatever the loads and the norm are, and AdamW leaves them alone (DeepSeek-V3, 2.1.2)."""
    experts = Experts(count=4, per_token=2, width=8, score=RouterScore.SIGMOID, bias_step=0.001)
    block = torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({"choose": Choose(experts, Mesh(), torch.bfloat16)})})
    sharding = OptimizerSharding(torch.nn.ModuleDict({"blocks": torch.nn.ModuleDict({"0": block})}), None)
    optimizer = Optimizer(sharding, SETTINGS, experts, tokens=10)
    (shard,) = sharding.shards
    for loads in ([5, 5, 2, 8], [9, 1, 5, 5]):
        shard.gradient.copy_(torch.tensor(loads))
        optimizer.step(torch.tensor(100.0), 1e-2)
        assert not shard.gradient.any()
    moved = torch.tensor([-0.001, 0.001, 0.001, -0.001])
    torch.testing.assert_close(shard.weight, moved)
    shard.gradient.copy_(torch.tensor([5, 5, 2, 8]))
    with pytest.raises(KareusError, match="its norm is inf"):
        optimizer.step(torch.tensor(torch.inf), 1e-2)
    torch.testing.assert_close(shard.weight, moved)  # nothing is updated
    assert optimizer.states()["weight"][shard.name].equal(shard.weight)  # what checkpoints have
