"""Optimizer sharding (ZeRO stage 1): a stage's weights and gradients in two flat buffers, cut into a shard per replica.

Data-parallel replicas hold the same weights. With ZeRO stage 1 (Rajbhandari et al., 2020) each sums the gradients of
an equal shard, updates the weights of that shard and gathers those of the others. Buffers are cut without regard to
where a weight ends, so that a large embedding does not unbalance them, and are reduced and gathered in place, by one
collective each.
"""

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kareus.model.communicators.process_group import all_gather_single, reduce_scatter_single
from kareus.training.gradients import weight_gradients

ALIGNMENT = 128
"""Number of elements of a shard is a multiple of it: 256 bytes of bf16, as memory of CUDA is aligned."""


class WeightShard(NamedTuple):
    """Elements of one weight that this rank optimizes: all, some, or none."""

    name: str
    shape: torch.Size
    """Shape of the whole weight."""
    start: int
    """Place of the first of the elements in the flattened weight."""
    weight: Tensor
    """View of the weights that the model computes with, [elements]."""
    gradient: Tensor
    """View of the gradients, fp32, [elements]."""


class OptimizerSharding:
    """Flat buffers of a stage's weights and gradients, and this rank's shard of them."""

    def __init__(self, stage: nn.Module, group: dist.ProcessGroup | None) -> None:
        """Make the weights of `stage` and their gradients views of flat buffers; gradients are set to zero.

        Args:
            stage: its weights are of one dtype and on one device.
            group: replicas that each optimize a shard; None if this rank optimizes all.
        """
        self._group = group
        count, own = (1, 0) if group is None else (group.size(), group.rank())
        names, weights = zip(*stage.named_parameters(), strict=True)
        buffers = dict(weight_gradients(stage))
        gradients = [buffers[name] for name in names]
        shapes = [weight.shape for weight in weights]
        ends = list(accumulate((shape.numel() for shape in shapes), initial=0))
        length = -(-ends[-1] // (count * ALIGNMENT)) * ALIGNMENT
        for gradient in gradients:  # making the buffers must not take more memory than training does
            gradient.data = gradient.new_empty(0)
        padding = weights[0].new_zeros(count * length - ends[-1])
        self._weights = torch.cat([*(weight.detach().flatten() for weight in weights), padding])
        _move(weights, shapes, self._weights)
        self._gradients = torch.zeros_like(self._weights, dtype=torch.float32)
        _move(gradients, shapes, self._gradients)
        self._own = slice(own * length, (own + 1) * length)
        self.own_gradients = self._gradients[self._own]
        """Gradients of this rank's shards, one after the other and padded with zeros, [elements]."""
        cuts = [_overlap(slice(*span), self._own) for span in pairwise(ends)]
        self.shards = [
            WeightShard(name, shape, cut.start - begin, self._weights[cut], self._gradients[cut])
            for name, shape, begin, cut in zip(names, shapes, ends, cuts, strict=False)  # one end more than weights
        ]

    def reduce_scatter_gradients(self) -> None:
        """Sum this rank's shard of the gradients over the replicas; the other shards are undefined afterwards."""
        if self._group is not None:
            reduce_scatter_single(self._gradients[self._own], self._gradients, group=self._group)

    def all_gather_weights(self) -> None:
        """Exchange the shards of the weights with the other replicas."""
        if self._group is not None:
            all_gather_single(self._weights, self._weights[self._own], group=self._group)

    def zero_gradients(self) -> None:
        """Set all gradients to zero."""
        self._gradients.zero_()


def _move(tensors: Iterable[Tensor], shapes: Iterable[torch.Size], buffer: Tensor) -> None:
    """Make `tensors` views of `buffer`, one after the other."""
    end = 0
    for tensor, shape in zip(tensors, shapes, strict=True):
        start, end = end, end + shape.numel()
        tensor.data = buffer[start:end].view(shape)


def _overlap(one: slice, other: slice) -> slice:
    start = max(one.start, other.start)
    return slice(start, max(start, min(one.stop, other.stop)))
