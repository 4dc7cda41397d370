"""The shards of a fully sharded model as the optimizer sees them; the counterpart of `OptimizerSharding`."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from kareus.runtime.fully_sharded import FullyShardedModel
from kareus.training.optimizer_sharding import WeightShard


class FullSharding:
    """This rank's rows of every weight, and a flat buffer of their gradients."""

    def __init__(self, stage: nn.Module, model: FullyShardedModel) -> None:
        """Take the shards of `model`, whose weights have the names that they have in `stage`."""
        self._model = model
        self._weights = {name: weight for name, weight in stage.named_parameters() if isinstance(weight, DTensor)}
        local = {name: weight.to_local().detach() for name, weight in self._weights.items()}
        sizes = [tensor.numel() for tensor in local.values()]
        self.own_gradients = next(iter(local.values())).new_zeros(sum(sizes))
        """Gradients of this rank's shards, one after the other, fp32, [elements]."""
        self._gradients = dict(zip(local, torch.split(self.own_gradients, sizes), strict=True))
        self.shards = [
            WeightShard(name, weight.shape, _start(weight), local[name].view(-1), self._gradients[name])
            for name, weight in self._weights.items()
        ]

    def take_gradients(self) -> None:
        """Take over the gradients, which every backward has summed over the replicas already."""
        self._model.reshard_all()
        for name, gradient in self._gradients.items():
            summed = self._weights[name].grad
            assert isinstance(summed, DTensor), "every weight has a gradient"
            gradient.copy_(summed.to_local().flatten())

    def all_gather_weights(self) -> None:
        """Do nothing: the next forward gathers the new weights."""

    def zero_gradients(self) -> None:
        """Forget all gradients."""
        self.own_gradients.zero_()
        for weight in self._weights.values():
            weight.grad = None


class FullReduction:
    """The sums of gradients, which every backward has taken over the replicas already."""

    def __init__(self, sharding: FullSharding) -> None:
        self._sharding = sharding

    def ready(self, part: nn.Module) -> None:
        """Do nothing: the backward reduces."""

    def finish(self) -> None:
        """Hand the sums over to the optimizer."""
        self._sharding.take_gradients()

    def exchange(self) -> None:
        """Do nothing: no two stages share an embedding."""


def _start(weight: DTensor) -> int:
    """Place of the first element of this rank's shard in the flattened weight; rows are dealt out by `torch.chunk`."""
    group = weight.device_mesh.get_group()
    rows = -(-weight.shape[0] // group.size())
    return min(group.rank() * rows, weight.shape[0]) * weight.shape[1:].numel()
