"""Collectives of a block over explicit process groups, and the two regions of tensor parallelism.

A group of None is a group of one GPU: its collectives do not exist.
"""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from kareus.model.functions import apply

# torch 2.13 renamed these two and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Mesh:
    """The process groups that one block communicates in."""

    tp: dist.ProcessGroup | None = None
    """GPUs that share every layer's weights."""
    cp: dist.ProcessGroup | None = None
    """GPUs that share every sequence."""


def group_size(group: dist.ProcessGroup | None) -> int:
    """Number of GPUs in `group`."""
    return 1 if group is None else group.size()


def group_rank(group: dist.ProcessGroup | None) -> int:
    """Place of this process in `group`."""
    return 0 if group is None else group.rank()


def all_reduce(tensor: Tensor, group: dist.ProcessGroup | None, operation: Any = dist.ReduceOp.SUM) -> None:
    """Reduce `tensor` over `group`, in place."""
    if group_size(group) > 1:
        dist.all_reduce(tensor, op=operation, group=group)


def all_gather(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the tensors of all ranks, [size, *shape]."""
    size = group_size(group)
    gathered = tensor.new_empty(size * tensor.shape[0], *tensor.shape[1:])
    _all_gather(gathered, tensor.contiguous(), group=group)
    return gathered.view(size, *tensor.shape)


def reduce_scatter(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum `tensor`, [size, *shape], over the ranks and return this rank's part, [*shape]."""
    scattered = tensor.new_empty(tensor.shape[1:])
    _reduce_scatter(scattered, tensor.flatten(0, 1).contiguous(), group=group)
    return scattered


class _CopyToRegion(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        all_reduce(gradient, ctx.group)
        return gradient, None


class _ReduceFromRegion(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.mark_dirty(tensor)
        all_reduce(tensor, group)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def copy_to_region(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Enter a tensor-parallel region: identity forward, all-reduce of the gradient backward (Megatron-LM's f)."""
    return tensor if group_size(group) == 1 else apply(_CopyToRegion, tensor, group)


def reduce_from_region(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Leave a tensor-parallel region: all-reduce forward, in place, identity backward (Megatron-LM's g)."""
    return tensor if group_size(group) == 1 else apply(_ReduceFromRegion, tensor, group)
