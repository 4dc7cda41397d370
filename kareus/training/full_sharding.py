"""The shards of a fully sharded model as the optimizer sees them; the counterpart of `OptimizerSharding`."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kareus.runtime.fully_sharded import FullyShardedModel
from kareus.training.optimizer_sharding import WeightShard


class FullSharding:
    """This rank's rows of every weight, and a flat buffer of their gradients, to which every backward adds."""

    def __init__(self, stage: nn.Module, model: FullyShardedModel) -> None:
        """Take the shards of `model`, whose weights have the names that they have in `stage`."""
        self._model = model
        weights = {name: weight for name, weight in stage.named_parameters() if isinstance(weight, DTensor)}
        local = {name: weight.to_local().detach() for name, weight in weights.items()}
        sizes = [tensor.numel() for tensor in local.values()]
        self._flat = next(iter(local.values())).new_zeros(sum(sizes))
        gradients = dict(zip(local, torch.split(self._flat, sizes), strict=True))
        model.add_gradients_to(
            [(weight, _like(weight, gradients[name].view(local[name].shape))) for name, weight in weights.items()]
        )
        self.shards = [
            WeightShard(name, weight.shape, _start(weight), local[name].view(-1), gradients[name])
            for name, weight in weights.items()
        ]

    @property
    def own_gradients(self) -> list[Tensor]:
        """Gradients of this rank's shards, one after the other, fp32, in one tensor."""
        return [self._flat]

    def ready(self, part: nn.Module) -> None:
        """Do nothing: every backward reduces its own gradients."""

    def finish(self) -> None:
        """Give gathered weights back; every backward has summed its gradients over the replicas already."""
        self._model.reshard_all()

    def all_gather_weights(self) -> None:
        """Do nothing: the next forward gathers the new weights."""

    def zero_gradients(self) -> None:
        """Set all gradients to zero."""
        self._flat.zero_()


def _like(weight: DTensor, local: Tensor) -> DTensor:
    """Return a tensor that is sharded as `weight` and of which this rank has `local`."""
    return DTensor.from_local(
        local, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


def _start(weight: DTensor) -> int:
    """Place of the first element of this rank's shard in the flattened weight; rows are dealt out by `torch.chunk`."""
    group = weight.device_mesh.get_group()
    rows = -(-weight.shape[0] // group.size())
    return min(group.rank() * rows, weight.shape[0]) * weight.shape[1:].numel()
