"""Optimizer sharding (ZeRO stage 1): a stage's weights and gradients in flat buffers of buckets, each cut into shards.

Data-parallel replicas hold the same weights. With ZeRO stage 1 (Rajbhandari et al., 2020) each sums the gradients of
an equal shard, updates the weights of that shard and gathers those of the others. A bucket has the weights of one
block, of the embedding, of learned positions, of the LM head or of the final norm, and every replica owns an equal part
of every bucket: so a bucket can be reduced as soon as its gradients are complete, in place, while the backward goes on.
Buckets are cut without regard to where a weight ends, so that a large one does not unbalance them. Two stages with
copies of a tied embedding cut it alike, since it is a bucket of its own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kareus.model.communicators.process_group import all_gather_single
from kareus.model.layers import WEIGHT_GRADIENT_SUFFIX
from kareus.model.weights import is_of_experts, moves_choices


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
_CHOOSING = ".choose"
"""Ends the name of a bucket of what experts are chosen by, which is in fp32 whatever other weights are in."""

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
            stage: its weights are on one device, those of a bucket of one dtype.
            group: replicas that each optimize a shard; None if this rank optimizes all.
            experts: the same of ranks that hold the same experts, whose weights are buckets of their own.
        """
        buffers, parts = dict(weight_gradients(stage)), dict[str, list[Named]]()
        for name, weight in stage.named_parameters():
            parts.setdefault(bucket_of(name), []).append((name, weight, buffers[name]))
        self._groups = {bucket: experts if is_expert_bucket(bucket) else group for bucket in parts}
        counts = {bucket: 1 if sharers is None else sharers.size() for bucket, sharers in self._groups.items()}
        lengths = {
            bucket: shard_length(sum(weight.numel() for _, weight, _ in part), counts[bucket])
            for bucket, part in parts.items()
        }
        for gradient in buffers.values():  # making the buffers must not take more memory than training does
            gradient.data = gradient.new_empty(0)
        elements = {bucket: counts[bucket] * length for bucket, length in lengths.items()}
        some = next(iter(buffers.values()))
        self._gradients = some.new_zeros(sum(elements.values()))
        self.buckets: dict[str, WeightBucket] = {}
        """Buckets by name (`bucket_of`), in the order of the first of each among the stage's weights."""
        self.shards: list[WeightShard] = []
        for (bucket, part), gradients in zip(
            parts.items(), torch.split(self._gradients, list(elements.values())), strict=True
        ):
            sharers, length = self._groups[bucket], lengths[bucket]
            weights = part[0][1].new_zeros(elements[bucket])
            first = 0 if sharers is None else sharers.rank() * length
            shard = slice(first, first + length)
            self.buckets[bucket] = WeightBucket(weights, weights[shard], gradients, gradients[shard])
            self._place(part, self.buckets[bucket], shard)

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

    def _place(self, named: Sequence[Named], bucket: WeightBucket, shard: slice) -> None:
        """Make weights and their gradients views of the buffers of a bucket, of which `shard` is this rank's."""
        start = 0
        for name, weight, gradient in named:
            shape = weight.shape
            place = slice(start, start + shape.numel())
            bucket.weights[place].copy_(weight.detach().flatten())
            weight.data, gradient.data = bucket.weights[place].view(shape), bucket.gradients[place].view(shape)
            cut = _overlap(place, shard)
            self.shards.append(
                WeightShard(name, shape, cut.start - place.start, bucket.weights[cut], bucket.gradients[cut])
            )
            start = place.stop


def bucket_of(name: str) -> str:
    """Return the bucket of the weight `name`.

    That is `embedding`, `POSITIONS`, `blocks.<n>`, `blocks.<n>.experts`, `blocks.<n>.choose`, `head.norm` or
    `head.lm_head`.
    """
    if name == POSITIONS:
        return POSITIONS
    module = name.split(".")[:-1]
    return ".".join(module[:2]) + (_OF_EXPERTS if is_of_experts(name) else _CHOOSING if moves_choices(name) else "")


def is_expert_bucket(bucket: str) -> bool:
    """Return whether a bucket has the experts of a block."""
    return bucket.endswith(_OF_EXPERTS)


def shard_length(elements: int, count: int) -> int:
    """Return the number of elements of each of `count` shards of a bucket."""
    return -(-elements // (count * ALIGNMENT)) * ALIGNMENT


def _overlap(first: slice, second: slice) -> slice:
    start = max(first.start, second.start)
    return slice(start, max(start, min(first.stop, second.stop)))
