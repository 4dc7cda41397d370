"""A stage's weights and gradients in two flat buffers, and which part of them this rank optimizes.

Data-parallel replicas hold the same weights. Where they share out the optimizer's states (ZeRO stage 1; Rajbhandari et
al., 2020), each sums the gradients of an equal part, updates the weights of that part and gets the others' from whoever
updated them. Buffers are cut without regard to where a weight ends, so that a large embedding does not unbalance them,
and are reduced and gathered in place, by one collective each.
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
"""Parts of the buffers are multiples of it: 256 bytes of bf16, as memory of CUDA is aligned."""


class Part(NamedTuple):
    """What this rank optimizes of one weight: all, a piece, or nothing."""

    name: str
    shape: torch.Size
    """Of the whole weight."""
    weight: Tensor
    """What the model computes with; a view, [elements]."""
    gradient: Tensor
    """Fp32; a view, [elements]."""


class Division:
    """A stage's weights and gradients, and this rank's part of them."""

    def __init__(self, stage: nn.Module, sharers: dist.ProcessGroup | None) -> None:
        """Make the weights of `stage` and their gradients views of flat buffers; gradients begin at zero.

        Args:
            stage: its weights are of one dtype and on one device.
            sharers: the replicas that each optimize a part; None if this rank optimizes all.
        """
        self._sharers = sharers
        count, own = (1, 0) if sharers is None else (sharers.size(), sharers.rank())
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
        cuts = [_overlap(slice(*span), self._own) for span in pairwise(ends)]
        self.parts = [
            Part(name, shape, self._weights[cut], self._gradients[cut])
            for name, shape, cut in zip(names, shapes, cuts, strict=True)
        ]

    def reduce(self) -> None:
        """Sum this rank's part of the gradients over the replicas; what is left of the others means nothing."""
        if self._sharers is not None:
            reduce_scatter_single(self._gradients[self._own], self._gradients, group=self._sharers)

    def gather(self) -> None:
        """Give the replicas this rank's part of the weights, and get theirs."""
        if self._sharers is not None:
            all_gather_single(self._weights, self._weights[self._own], group=self._sharers)

    def clear(self) -> None:
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
