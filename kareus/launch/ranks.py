"""Which rank stands where: tensor parallelism varies fastest, then context, data and pipeline, as in Megatron-LM.

So the ranks of a tensor-parallel group share a node.
"""

from dataclasses import dataclass, replace

import torch.distributed as dist

from kareus.errors import EngineError
from kareus.model.communication import Communicator, Mesh
from kareus.model.communicators.choice import Library, make_communicator
from kareus.model.config import Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank stands on each axis."""

    stage: int
    replica: int
    cp: int
    tp: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Whom one rank communicates with."""

    mesh: Mesh
    """About operators."""
    replicas: Communicator | None
    """About weight gradients, with the same place of the other replicas; None if there is one replica, or if they share
    out the optimizer's states, see `Lines.sharers`."""


@dataclass(frozen=True, slots=True)
class Lines:
    """With whom one rank agrees on what is not about operators."""

    stages: dist.ProcessGroup
    """The same place of all stages, in order."""
    tensor: dist.ProcessGroup | None
    """The tensor-parallel group, for small sums that no plan speaks of; None if it is this rank alone."""
    ends: Communicator | None
    """First and last stage, where both hold a copy of tied embeddings; None elsewhere."""
    sharers: dist.ProcessGroup | None
    """The same place of all replicas, in order, that share out the optimizer's states; None if each has them whole."""


def place_of(rank: int, parallelism: Parallelism, world_size: int) -> Place:
    """Where `rank` stands.

    Raises:
        EngineError: the job has another number of ranks than the workload has GPUs.
    """
    if world_size != parallelism.gpus:
        raise EngineError(
            f"world size {world_size}: the workload runs on {parallelism.gpus} ranks (dp {parallelism.dp} x pp "
            f"{parallelism.pp} x cp {parallelism.cp} x tp {parallelism.tp}); start as many."
        )
    rest, tp = divmod(rank, parallelism.tp)
    rest, cp = divmod(rest, parallelism.cp)
    stage, replica = divmod(rest, parallelism.dp)
    return Place(stage=stage, replica=replica, cp=cp, tp=tp)


def rank_of(place: Place, parallelism: Parallelism) -> int:
    """The rank that stands at `place`."""
    row = (place.stage * parallelism.dp + place.replica) * parallelism.cp + place.cp
    return row * parallelism.tp + place.tp


def groups_of(place: Place, parallelism: Parallelism, library: Library, scratch_bytes: int) -> Groups:
    """Make the groups of the rank at `place`; every rank calls this once its process group is initialised.

    Args:
        place: of this rank.
        parallelism: of the workload.
        library: who communicates about operators; about weight gradients NCCL does, or gloo on CPUs.
        scratch_bytes: the largest message.

    Raises:
        EngineError: the library is missing.
    """
    first = rank_of(place, parallelism)
    tensor = range(first - place.tp, first - place.tp + parallelism.tp)
    along_cp = first - place.cp * parallelism.tp
    context = range(along_cp, along_cp + parallelism.cp * parallelism.tp, parallelism.tp)
    width = parallelism.cp * parallelism.tp
    along_dp = first - place.replica * width
    replicas = range(along_dp, along_dp + parallelism.dp * width, width)
    of_weights = Library.NCCL if library is Library.MSCCLPP else library
    return Groups(
        Mesh(
            tp=make_communicator(library, "tp", tensor, scratch_bytes),
            cp=make_communicator(library, "cp", context, scratch_bytes),
        ),
        None if parallelism.shard_optimizer else make_communicator(of_weights, "dp", replicas, scratch_bytes),
    )


def lines_of(place: Place, parallelism: Parallelism, library: Library, *, ties_ends: bool) -> Lines:
    """Make the further groups of the rank at `place`; every rank calls this after `groups_of`.

    Args:
        place: of this rank.
        parallelism: of the workload.
        library: as for `groups_of`.
        ties_ends: whether the embedding of the first stage and the head of the last share their weights.
    """
    of_weights = Library.GLOO if library is Library.GLOO else Library.NCCL
    stages = [rank_of(replace(place, stage=stage), parallelism) for stage in range(parallelism.pp)]
    tensor = [rank_of(replace(place, tp=tp), parallelism) for tp in range(parallelism.tp)]
    replicas = [rank_of(replace(place, replica=replica), parallelism) for replica in range(parallelism.dp)]
    tied = ties_ends and parallelism.pp > 1 and place.stage in (0, parallelism.pp - 1)
    return Lines(
        _group(stages, of_weights, "pp"),
        _group(tensor, of_weights, "tp-sums") if parallelism.tp > 1 else None,
        make_communicator(of_weights, "ends", [stages[0], stages[-1]], 0) if tied else None,
        _group(replicas, of_weights, "sharers") if parallelism.shard_optimizer and parallelism.dp > 1 else None,
    )


def _group(ranks: list[int], library: Library, name: str) -> dist.ProcessGroup:
    group = dist.new_group(ranks, backend=str(library), use_local_synchronization=True, group_desc=name)
    assert isinstance(group, dist.ProcessGroup)
    return group
