"""Sums of weight gradients over ranks that share weights, after the last backward of an iteration.

A rank's gradients are of its own tokens, and those of norms of queries and keys also of its own heads. With sequence
parallelism the tokens of the other norms are shared out within a tensor-parallel group, too. If every loss is
weighted with its tokens' share of the iteration's, plain sums are right however uneven the batches are.
"""

from collections.abc import Iterator

import torch.distributed as dist
from torch import Tensor, nn

from kareus.launch.process_groups import ProcessGroups
from kareus.model.communication import Communicator, Mesh
from kareus.model.layers import WEIGHT_GRADIENT_SUFFIX, Norm, QueryKeyNorm


def weight_gradients(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each weight and the fp32 buffer of its gradient; shared weights once."""
    for name, buffer in module.named_buffers():
        if name.endswith(WEIGHT_GRADIENT_SUFFIX):
            yield name.removesuffix(WEIGHT_GRADIENT_SUFFIX), buffer


def sum_weight_gradients(module: nn.Module, mesh: Mesh, data: Communicator | None) -> None:
    """Sum gradients over all ranks with the same weights, in place.

    Args:
        module: a stage's model.
        mesh: its tensor-parallel and context-parallel groups.
        data: its data-parallel group; None if there is one replica, or if the optimizer is sharded (see
            `kareus.training.optimizer_sharding`).
    """
    partial = (QueryKeyNorm, Norm) if mesh.sequence_parallel else (QueryKeyNorm,)
    own = [b for m in module.modules() if isinstance(m, partial) for _, b in weight_gradients(m)]
    if mesh.tp is not None and own:
        mesh.tp.all_reduce(own).wait()
    everything = [buffer for _, buffer in weight_gradients(module)]
    for group in (mesh.cp, data):
        if group is not None:
            group.all_reduce(everything).wait()


def sum_tied_gradient(gradient: Tensor, groups: ProcessGroups) -> None:
    """Sum the gradient of an embedding that the first and the last stage hold, so that both get the same bits.

    If the optimizer is sharded, shards begin at other places of the embedding on either stage, and the rounding of a
    sum over replicas may depend on the place. So it is summed over replicas here, and only the first of them
    contributes to `OptimizerSharding.reduce_scatter_gradients`.

    Args:
        gradient: of this rank's copy, after `sum_weight_gradients`; in place.
        groups: of this rank, a rank of either stage.
    """
    assert groups.tied_embeddings is not None
    if groups.optimizer_shards is not None:
        dist.reduce(gradient, group_dst=0, group=groups.optimizer_shards)
        if groups.optimizer_shards.rank():
            gradient.zero_()
    groups.tied_embeddings.all_reduce([gradient]).wait()
