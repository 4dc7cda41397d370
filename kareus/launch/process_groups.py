"""The process groups of a rank: one for each axis of parallelism, and those of what the axes share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from kareus.graph.number_formats import BF16_BYTES
from kareus.launch.mesh import MeshCoordinate, rank_of
from kareus.launch.rendezvous import Rendezvous
from kareus.model.communication import Communicator, Mesh
from kareus.model.communicators.choice import Library, make_communicator
from kareus.model.communicators.nccl import nccl_options
from kareus.model.parallelism import Parallelism
from kareus.workload.config import Workload
from kareus.workload.memory import MESSAGE_CHANNELS, SUM_CHANNELS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroups:
    """Groups that one rank is a member of. A group of one rank is None, except `pipeline`."""

    mesh: Mesh
    """Tensor- and context-parallel communicators, for the operators of a block."""
    data: Communicator | None
    """Data- and context-parallel ranks, all of which hold the same weights, for weight gradients; None too if the
    optimizer is sharded (see `optimizer_shards`)."""
    pipeline: dist.ProcessGroup
    """Ranks of all stages that differ in the stage only, in order: for messages to later stages, and for sums."""
    pipeline_backward: dist.ProcessGroup
    """The same ranks, for messages to earlier stages, which wait for none of those to later ones."""
    tensor: dist.ProcessGroup | None
    """Tensor-parallel group, for small sums that are not part of a plan."""
    tied_embeddings: Communicator | None
    """First and last stage, on their ranks, where both hold a copy of tied embeddings."""
    optimizer_shards: dist.ProcessGroup | None
    """Data-parallel group that shards the optimizer's states (ZeRO-1); None if each replica has them whole."""
    expert_data: Communicator | None = None
    """Ranks of the stage that hold the same experts, for their gradients; None too if the optimizer is sharded."""
    expert_shards: dist.ProcessGroup | None = None
    """These ranks, where they shard the states of experts."""
    experts: dist.ProcessGroup | None = None
    """Ranks that share out the experts of a block, for small sums that are not part of a plan."""
    balance: Communicator | None = None
    """Ranks that run parts of the same microbatches, which sum what their routers chose; on the host."""


def init_process_groups(
    rendezvous: Rendezvous, coordinate: MeshCoordinate, device: torch.device, library: Library, workload: Workload
) -> ProcessGroups:
    """Initialise torch.distributed and make the groups of this rank; every rank calls this.

    Args:
        rendezvous: of this start of all ranks.
        coordinate: of this rank.
        device: of this rank.
        library: library of the operators' collectives.
        workload: decides groups and the largest message.

    Raises:
        EngineError: the library is missing.
    """
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    store = PrefixStore("kareus", rendezvous.store)
    dist.init_process_group(backend, store=store, rank=rendezvous.rank, world_size=rendezvous.world_size)
    tokens = workload.microbatch_size * workload.sequence_length // workload.parallelism.cp
    return make_process_groups(
        coordinate,
        workload.parallelism,
        library,
        scratch_bytes=tokens * workload.model.hidden_size * BF16_BYTES,
        tie_embeddings=workload.model.tie_embeddings,
        has_experts=workload.model.experts is not None,
    )


def make_process_groups(
    coordinate: MeshCoordinate,
    parallelism: Parallelism,
    library: Library,
    *,
    scratch_bytes: int,
    tie_embeddings: bool,
    has_experts: bool = False,
) -> ProcessGroups:
    """Make the groups of the rank at `coordinate`; every rank calls this once torch.distributed is initialised.

    Args:
        coordinate: of this rank.
        parallelism: of the workload.
        library: library of the operators' collectives; others use NCCL, or gloo on CPUs.
        scratch_bytes: size of the largest message of an operator.
        tie_embeddings: whether the embedding of the first stage and the head of the last share their weights.
        has_experts: whether blocks have experts, for which a stage's ranks are grouped anew.

    Raises:
        EngineError: the library is missing.
    """
    of_weights = Library.NCCL if library is Library.MSCCLPP else library
    of_sums = Library.GLOO if library is Library.GLOO else Library.NCCL
    # ranks along each axis through this coordinate
    stages = [rank_of(replace(coordinate, stage=stage), parallelism) for stage in range(parallelism.pp)]
    replicas = [rank_of(replace(coordinate, replica=replica), parallelism) for replica in range(parallelism.dp)]
    context = [rank_of(replace(coordinate, cp=cp), parallelism) for cp in range(parallelism.cp)]
    tensor = [rank_of(replace(coordinate, tp=tp), parallelism) for tp in range(parallelism.tp)]
    copies = [
        rank_of(replace(coordinate, replica=replica, cp=cp), parallelism)
        for replica in range(parallelism.dp)
        for cp in range(parallelism.cp)
    ]
    sharded = parallelism.shards_states
    place = parallelism.rank(0, coordinate.replica, coordinate.cp, coordinate.tp)
    experts = parallelism.expert_ranks(coordinate.stage, place)
    same_experts = parallelism.expert_replica_ranks(coordinate.stage, place)
    shares_batch = [
        rank_of(replace(coordinate, stage=stage, cp=cp, tp=tp), parallelism)
        for stage in range(parallelism.pp)
        for cp in range(parallelism.cp)
        for tp in range(parallelism.tp)
    ]
    shards_experts = sharded and len(same_experts) > 1
    holds_tied = tie_embeddings and parallelism.head_stage > 0 and coordinate.stage in (0, parallelism.head_stage)
    return ProcessGroups(  # in one order on all ranks
        mesh=Mesh(
            tp=make_communicator(library, "tp", tensor, scratch_bytes),
            cp=make_communicator(library, "cp", context, scratch_bytes),
            sequence_parallel=parallelism.token_shards > 1,
            ep=make_communicator(library, "ep", experts, scratch_bytes),
            counts=make_communicator(of_weights, "counts", experts, 0),
        ),
        data=None if sharded else make_communicator(of_weights, "dp", copies, scratch_bytes),
        pipeline=_group(stages, of_sums, "pp", MESSAGE_CHANNELS),
        pipeline_backward=_group(stages, of_sums, "pp-backward", MESSAGE_CHANNELS),
        tensor=_group(tensor, of_sums, "tp-sums", SUM_CHANNELS) if parallelism.tp > 1 else None,
        tied_embeddings=make_communicator(of_sums, "ends", [stages[0], stages[-1]], 0) if holds_tied else None,
        optimizer_shards=_group(replicas, of_sums, "sharers") if sharded else None,
        expert_data=None
        if sharded or not has_experts
        else make_communicator(of_weights, "expert-dp", same_experts, scratch_bytes),
        expert_shards=_group(same_experts, of_sums, "expert-sharers") if has_experts and shards_experts else None,
        experts=_group(experts, of_sums, "ep-sums", SUM_CHANNELS) if parallelism.ep > 1 else None,
        balance=make_communicator(Library.GLOO, "balance", shares_batch, 0) if has_experts else None,
    )


def sum_over_ranks(*values: float) -> list[float]:
    """Return the sum of each value over all ranks; all wait for the last."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return [float(value) for value in total]


def _group(ranks: Sequence[int], library: Library, name: str, channels: int | None = None) -> dist.ProcessGroup:
    """Make the group of `ranks`; NCCL gives it that number of channels, as `kareus.workload.memory` counts."""
    options = nccl_options(channels) if channels is not None and library is Library.NCCL else None
    group = dist.new_group(
        list(ranks), backend=str(library), pg_options=options, use_local_synchronization=True, group_desc=name
    )
    assert isinstance(group, dist.ProcessGroup)
    return group
