"""Optimizer sharding (ZeRO stage 1): a stage's weights and gradients in flat buffers of buckets, each cut into shards.

Data-parallel replicas hold the same weights. With ZeRO stage 1 (Rajbhandari et al., 2020) each sums the gradients of
an equal shard, updates the weights of that shard and gathers those of the others. A bucket has the weights of one
block, of the embedding, of learned positions, of the LM head or of the final norm, and every replica owns an equal part
of every bucket: so a bucket can be reduced as soon as its gradients are complete, in place, while the backward goes on.
Buckets are cut without regard to where a weight ends, so that a large one does not unbalance them. Two stages with
copies of a tied embedding cut it alike, since it is a bucket of its own.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kareus.model.communicators.process_group import all_gather_single
from kareus.model.layers import WEIGHT_GRADIENT_SUFFIX
from kareus.model.weights import is_of_experts


def weight_gradients(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each weight and the fp32 buffer of its gradient; shared weights once."""
    for name, buffer in module.named_buffers():
        if name.endswith(WEIGHT_GRADIENT_SUFFIX):
            yield name.removesuffix(WEIGHT_GRADIENT_SUFFIX), buffer


ALIGNMENT = 128
"""Number of elements of a shard is a multiple of it: 256 bytes of bf16, as memory of CUDA is aligned."""

POSITIONS = "embedding.positions"
"""Name of learned positions, and of their bucket: the last stage has none beside its copy of a tied embedding."""

_OF_EXPERTS = ".experts"
"""Ends the name of a bucket of experts."""

Named = tuple[str, Tensor, Tensor]
"""Name of a weight, the weight and its gradient."""


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


class WeightBucket(NamedTuple):
    """Weights whose gradients are reduced at once; all tensors are views, [elements]."""

    weights: Tensor
    own_weights: Tensor
    """This rank's shard, as the next but one."""
    gradients: Tensor
    own_gradients: Tensor


class OptimizerSharding:
    """Flat buffers of a stage's weights and gradients, and this rank's shards of them."""

    def __init__(
        self, stage: nn.Module, group: dist.ProcessGroup | None, experts: dist.ProcessGroup | None = None
    ) -> None:
        """Make the weights of `stage` and their gradients views of flat buffers; gradients are set to zero.

        Args:
            stage: its weights are of one dtype and on one device.
            group: replicas that each optimize a shard; None if this rank optimizes all.
            experts: the same of ranks that hold the same experts, whose weights are buckets of their own.
        """
        names, weights = zip(*stage.named_parameters(), strict=True)
        buffers = dict(weight_gradients(stage))
        gradients = [buffers[name] for name in names]
        named = list(zip(names, weights, gradients, strict=True))
        parts = {bucket: list(part) for bucket, part in groupby(named, key=lambda each: bucket_of(each[0]))}
        self._groups = {bucket: experts if is_expert_bucket(bucket) else group for bucket in parts}
        counts = {bucket: 1 if sharers is None else sharers.size() for bucket, sharers in self._groups.items()}
        lengths = {
            bucket: shard_length(sum(weight.numel() for _, weight, _ in part), counts[bucket])
            for bucket, part in parts.items()
        }
        shapes = [weight.shape for weight in weights]
        for gradient in gradients:  # making the buffers must not take more memory than training does
            gradient.data = gradient.new_empty(0)
        self._weights = weights[0].new_zeros(sum(counts[bucket] * length for bucket, length in lengths.items()))
        self._gradients = torch.zeros_like(self._weights, dtype=torch.float32)
        self.buckets: dict[str, WeightBucket] = {}
        """Buckets by name (`bucket_of`), in the order of the stage's weights."""
        self.shards: list[WeightShard] = []
        start = 0
        for bucket, part in parts.items():
            sharers, length = self._groups[bucket], lengths[bucket]
            end = start + counts[bucket] * length
            whole = slice(start, end)
            first = start + (0 if sharers is None else sharers.rank()) * length
            shard = slice(first, first + length)
            self.buckets[bucket] = WeightBucket(
                self._weights[whole], self._weights[shard], self._gradients[whole], self._gradients[shard]
            )
            self._place(part, shapes[len(self.shards) :], start, shard)
            start = end

    @property
    def own_gradients(self) -> list[Tensor]:
        """Gradients of this rank's shards with their padding of zeros, in as few tensors as there can be."""
        if not any(self._groups.values()):
            return [self._gradients]
        return [bucket.own_gradients for bucket in self.buckets.values()]

    def all_gather_weights(self) -> None:
        """Exchange the shards of the weights with the other replicas."""
        for name, bucket in self.buckets.items():
            if (sharers := self._groups[name]) is not None:
                all_gather_single(bucket.weights, bucket.own_weights, group=sharers)

    def zero_gradients(self) -> None:
        """Set all gradients to zero."""
        self._gradients.zero_()

    def _place(self, named: Sequence[Named], shapes: Sequence[torch.Size], start: int, shard: slice) -> None:
        """Make the weights and gradients of a bucket that begins at `start` views of the buffers."""
        for (name, weight, gradient), shape in zip(named, shapes, strict=False):
            place = slice(start, start + shape.numel())
            self._weights[place].copy_(weight.detach().flatten())
            weight.data, gradient.data = self._weights[place].view(shape), self._gradients[place].view(shape)
            cut = _overlap(place, shard)
            self.shards.append(
                WeightShard(name, shape, cut.start - place.start, self._weights[cut], self._gradients[cut])
            )
            start = place.stop


def bucket_of(name: str) -> str:
    """Return the bucket of the weight `name`.

    That is `embedding`, `POSITIONS`, `blocks.<n>`, `blocks.<n>.experts`, `head.norm` or `head.lm_head`.
    """
    if name == POSITIONS:
        return POSITIONS
    module = name.split(".")[:-1]
    return ".".join(module[:2]) + (_OF_EXPERTS if is_of_experts(name) else "")


def is_expert_bucket(bucket: str) -> bool:
    """Return whether a bucket has the experts of a block."""
    return bucket.endswith(_OF_EXPERTS)


def shard_length(elements: int, count: int) -> int:
    """Return the number of elements of each of `count` shards of a bucket."""
    return -(-elements // (count * ALIGNMENT)) * ALIGNMENT


def _overlap(first: slice, second: slice) -> slice:
    start = max(first.start, second.start)
    return slice(start, max(start, min(first.stop, second.stop)))
