"""Instructions of the update of the weights on a stage, its collectives, and where the ranks of their groups lie."""

from collections.abc import Iterable
from dataclasses import replace

from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.network import Placement, placement_of
from kareus.graph.number_formats import BF16_BYTES, FP32_BYTES
from kareus.graph.records import Collective, CollectiveKind, Direction
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import Replicated
from kareus.software.record import Software

Placed = tuple[Collective, Placement]


def update_directions(config: Replicated, stage: int) -> tuple[Direction, ...]:
    """Return the directions of the instructions that end an iteration on `stage`, in order of execution.

    Gradients are reduced where several ranks hold the same weights for other tokens, by data or context parallelism,
    or the same experts, as ranks of a tensor-parallel group may; with sharded gradients every backward reduces its
    own, and only their shards are summed over the replicas that hold the same, once an iteration (`fully_shard` with
    `set_requires_all_reduce` for the last microbatch).
    """
    parallelism = config.parallelism
    same_experts = config.model.experts is not None and parallelism.expert_replicas > 1
    several = parallelism.dp * parallelism.cp > 1 or same_experts
    reduces = several and (not parallelism.shards_gradients or parallelism.copies > 1)
    return (
        *(Direction.GRADIENT_REDUCTION,) * reduces,
        *(Direction.EMBEDDING_EXCHANGE,) * exchanges(config, stage),
        Direction.UPDATE,
    )


def exchanges(config: Replicated, stage: int) -> bool:
    """Return whether `stage` holds a copy of tied embeddings that another stage holds, too."""
    last = config.parallelism.head_stage
    trained = config.model.tie_embeddings and not config.training.trains_adapters
    return trained and last > 0 and stage in (0, last)


def reduction_collectives(
    parallelism: Parallelism, gpu: Gpu, software: Software, stage: int, parameters: int
) -> tuple[Placed, ...]:
    """Return the collectives that sum the gradients of `parameters` over the ranks of a stage with the same weights.

    One all-reduce over data and context parallelism; or, with a sharded optimizer whose shards alone are summed, a
    reduce-scatter over the ranks that each optimize one. Where these are the replicas alone, an all-reduce of the shard
    over context parallelism follows; where they are a part of the replicas, one over those that hold the same shard
    (hybrid sharding). Shards of gradients that every backward has reduced already have only the latter.
    """
    whole = Collective(
        kind=CollectiveKind.ALL_REDUCE,
        group="dp",
        group_size=parallelism.dp * parallelism.cp,
        message_bytes=software.gradient_bytes * parameters,
        fused=1,
    )
    if software.sums_whole or not parallelism.shards_states:
        return _placed(
            [(whole, _copies(parallelism, stage, range(parallelism.dp), range(parallelism.cp)))], parallelism, gpu
        )
    sharing = parallelism.sharing_ranks(stage, over_context=software.shares_over_context)
    over_sharing = replace(whole, kind=CollectiveKind.REDUCE_SCATTER, group_size=len(sharing))
    shard = replace(whole, message_bytes=-(-whole.message_bytes // len(sharing)))
    over_context = replace(shard, group="cp", group_size=1 if software.shares_over_context else parallelism.cp)
    over_copies = replace(shard, group="copies", group_size=parallelism.copies)
    sums = [
        (over_sharing, sharing),
        (over_context, _copies(parallelism, stage, range(1), range(parallelism.cp))),
        (over_copies, parallelism.copy_ranks(stage)),
    ]
    return _placed(sums[-1:] if parallelism.shards_gradients else sums, parallelism, gpu)


def expert_reduction_collectives(
    parallelism: Parallelism, gpu: Gpu, software: Software, stage: int, parameters: int
) -> tuple[Placed, ...]:
    """Return the collectives that sum the gradients of experts' `parameters` over the GPUs that hold the same experts.

    They are fewer than those that hold the same of the rest of a stage, or none (Megatron Core: expert data
    parallelism); in hybrid sharding those of a group share out the sum, and groups add up shards, as of the rest.
    """
    shares = parallelism.shards_states and not software.sums_whole
    whole = Collective(
        kind=CollectiveKind.REDUCE_SCATTER if shares else CollectiveKind.ALL_REDUCE,
        group="expert-dp",
        group_size=parallelism.expert_replicas if parameters else 1,
        message_bytes=software.gradient_bytes * parameters,
        fused=1,
    )
    if not shares or parallelism.copies == 1:
        return _placed([(whole, parallelism.expert_replica_ranks(stage))], parallelism, gpu)
    sharing = parallelism.expert_sharing if parameters else 1
    over_copies = replace(
        whole,
        kind=CollectiveKind.ALL_REDUCE,
        group="copies",
        group_size=parallelism.copies if parameters else 1,
        message_bytes=-(-whole.message_bytes // sharing),
    )
    sums = [
        (replace(whole, group_size=sharing), parallelism.expert_sharing_ranks(stage)),
        (over_copies, parallelism.expert_copy_ranks(stage)),
    ]
    return _placed(sums[-1:] if parallelism.shards_gradients else sums, parallelism, gpu)


def expert_gather_collectives(parallelism: Parallelism, gpu: Gpu, stage: int, parameters: int) -> tuple[Placed, ...]:
    """Return the all-gather of new weights of experts from GPUs that each optimized a shard; none without shards."""
    if not parallelism.shards_states or parallelism.shards_weights or not parameters:
        return ()
    gather = Collective(
        kind=CollectiveKind.ALL_GATHER,
        group="expert-dp",
        group_size=parallelism.expert_sharing,
        message_bytes=BF16_BYTES * parameters,
        fused=1,
    )
    return _placed([(gather, parallelism.expert_sharing_ranks(stage))], parallelism, gpu)


def norm_gradient_collectives(parallelism: Parallelism, gpu: Gpu, stage: int, parameters: int) -> tuple[Placed, ...]:
    """Return the sum over tensor parallelism of the fp32 gradients of `parameters`, which are partial there."""
    whole = Collective(
        kind=CollectiveKind.ALL_REDUCE,
        group="tp",
        group_size=parallelism.tp,
        message_bytes=FP32_BYTES * parameters,
        fused=1,
    )
    return _placed([(whole, _tensor_ranks(parallelism, stage))] if parameters else [], parallelism, gpu)


def gather_collectives(
    parallelism: Parallelism, gpu: Gpu, software: Software, stage: int, parameters: int
) -> tuple[Placed, ...]:
    """Return the all-gather of new bf16 weights from the ranks that each optimized a shard; none without shards.

    Sharded weights are gathered by the instructions that use them.
    """
    if not parallelism.shards_states or parallelism.shards_weights:
        return ()
    ranks = parallelism.sharing_ranks(stage, over_context=software.shares_over_context)
    gather = Collective(
        kind=CollectiveKind.ALL_GATHER,
        group="dp",
        group_size=len(ranks),
        message_bytes=BF16_BYTES * parameters,
        fused=1,
    )
    return _placed([(gather, ranks)], parallelism, gpu)


def exchange_collectives(parallelism: Parallelism, gpu: Gpu, software: Software, parameters: int) -> tuple[Placed, ...]:
    """Return the sum of the gradients of a tied embedding over the first and the last stage."""
    exchange = Collective(
        kind=CollectiveKind.ALL_REDUCE,
        group="ends",
        group_size=2,
        message_bytes=software.gradient_bytes * parameters,
        fused=1,
    )
    return _placed([(exchange, (0, (parallelism.pp - 1) * parallelism.gpus_per_stage))], parallelism, gpu)


def norm_collectives(parallelism: Parallelism, gpu: Gpu, stage: int) -> tuple[Placed, ...]:
    """Return the sums of the squared norms of shards: over tensor parallelism, stages, and replicas with shards."""
    number = Collective(
        kind=CollectiveKind.ALL_REDUCE, group="tp", group_size=parallelism.tp, message_bytes=FP32_BYTES, fused=1
    )
    replicas = parallelism.sharing if parallelism.shards_states else 1
    return _placed(
        [
            (number, _tensor_ranks(parallelism, stage)),
            (
                replace(number, group="pp", group_size=parallelism.pp),
                range(0, parallelism.gpus, parallelism.gpus_per_stage),
            ),
            (
                replace(number, group="dp", group_size=replicas),
                _copies(parallelism, stage, range(replicas), range(1)),
            ),
        ],
        parallelism,
        gpu,
    )


def _copies(parallelism: Parallelism, stage: int, replicas: range, context: range) -> list[int]:
    """Return the first tensor-parallel rank of each given replica and context-parallel index of a stage."""
    return [parallelism.rank(stage, replica, cp) for replica in replicas for cp in context]


def _tensor_ranks(parallelism: Parallelism, stage: int) -> list[int]:
    """Return the first tensor-parallel group of a stage."""
    return [parallelism.rank(stage, tp=tp) for tp in range(parallelism.tp)]


def _placed(
    of_ranks: Iterable[tuple[Collective, Iterable[int]]], parallelism: Parallelism, gpu: Gpu
) -> tuple[Placed, ...]:
    """Return collectives with their placements, without those of one rank."""
    return tuple(
        (collective, placement_of(list(ranks), gpu.linked_gpus(parallelism.gpus)))
        for collective, ranks in of_ranks
        if collective.group_size > 1
    )
