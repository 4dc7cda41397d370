"""What is left to do to weight gradients after the last backward of an iteration: sums over ranks that share weights.

A rank's gradients are of its own tokens, and those of norms of queries and keys also of its own heads. If every loss is
weighted with its tokens' share of the iteration's, plain sums are right however uneven the batches are.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor, nn

from kareus.launch.ranks import Lines
from kareus.model.communication import Communicator, Mesh
from kareus.model.layers import WEIGHT_GRADIENT_SUFFIX, QueryKeyNorm


def weight_gradients(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name of each weight, and the fp32 buffer of its gradient; shared weights once."""
    for name, buffer in module.named_buffers():
        if name.endswith(WEIGHT_GRADIENT_SUFFIX):
            yield name.removesuffix(WEIGHT_GRADIENT_SUFFIX), buffer


def sum_weight_gradients(module: nn.Module, mesh: Mesh, replicas: Communicator | None) -> None:
    """Sum gradients over everyone with the same weights, in place.

    Args:
        module: a stage's model.
        mesh: its tensor-parallel and context-parallel groups.
        replicas: its data-parallel group; None if there is one replica, or if each sums a part of its own (see
            `kareus.training.sharding`).
    """
    own_heads = [b for m in module.modules() if isinstance(m, QueryKeyNorm) for _, b in weight_gradients(m)]
    if mesh.tp is not None and own_heads:
        mesh.tp.all_reduce(own_heads).wait()
    everything = [buffer for _, buffer in weight_gradients(module)]
    for group in (mesh.cp, replicas):
        if group is not None:
            group.all_reduce(everything).wait()


def sum_tied_gradient(gradient: Tensor, lines: Lines) -> None:
    """Sum the gradient of an embedding that the first and the last stage hold, so that both get the same bits.

    Replicas that share out the optimizer's states do not cut it at the same places on both stages, and a sum over them
    may depend on the place. So theirs is taken before, and the first of them brings it alone to `Division.reduce`.

    Args:
        gradient: of this rank's copy, after `sum_weight_gradients`; in place.
        lines: groups of this rank, a rank of either stage.
    """
    assert lines.ends is not None
    if lines.sharers is not None:
        dist.reduce(gradient, group_dst=0, group=lines.sharers)
        if lines.sharers.rank():
            gradient.zero_()
    lines.ends.all_reduce([gradient]).wait()
