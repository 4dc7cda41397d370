"""Collectives of weights that data-parallel replicas share out, beside the blocks of an instruction.

With sharded weights (FSDP, ZeRO stage 3) every replica holds a part of each block and gathers the rest right before the
block runs, forward and backward; with sharded gradients (ZeRO stage 2) too, the gradients of a block are
reduce-scattered as soon as its backward has computed them, in every microbatch. What one block needs or leaves is one
collective. A gather is prefetched one block ahead and a reduction runs one block behind, so that both run beside the
computation of another block; where they take longer, the next block waits. A gather that is prefetched further ahead
(`parallelism.fsdp.prefetch`) may run beside any block from there on, and is put beside all of them by their FLOPs: that
pays where blocks differ, and keeps more of them gathered. Exposed are the gather of an instruction's
first block, the reduction of its last one, and, of stages that have them, gather and reduction of embedding and head,
which are one group: gathered before a forward, kept until the end of the backward.

Experts are shared out over the GPUs that hold the same ones: over all replicas where none are divided (every GPU then
gathers all experts of a block), else over fewer, by a collective of their own (torchtitan's mesh `efsdp`).

A step of a program has one collective, so the blocks' own collectives get steps of their own, and gather and reduction
are put beside different operators of a block: the gather beside the first, the reduction beside the rest, in parts
where these are in many steps. Where experts have collectives of their own, all of these run one after the other along
the whole block, its exchanges of tokens among it, as far as these use other wires. Blocks run sequentially.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol

from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.network import placement_of
from kareus.graph.number_formats import BF16_BYTES
from kareus.graph.records import CollectiveKind, Direction, Operator, PlacedCollective, Scope, Step, SwitchedGather
from kareus.model.parameters import gathered_bytes, trained_expert_parameters, trained_parameters
from kareus.model.training_options import Replicated
from kareus.software.record import Software

FEW = 2
"""Stretches of operators between collectives of a block without sequence parallelism, at most."""
LITTLE = 0.05
"""Share of the FLOPs of a block below which nothing is put beside a stretch: norms are over before it has begun."""
NVLS_SMS = 4
"""SMs of an all-gather by NVLS from registered buffers, as seen with FSDP on 8 GPUs of a node (nccl issue 1670, which
also has that fp32 sums are not scattered so). Not measured here."""
COMPUTING_GRADIENTS = (Direction.BACKWARD, Direction.WEIGHT_GRADIENT)
"""Directions that compute weight gradients."""


class WeightLayout(Replicated, Protocol):
    """What decides the collectives of weights: a workload, or a slice of it."""

    @property
    def gpu(self) -> Gpu:
        """The GPU, on whose nodes the replicas lie."""

    @property
    def software(self) -> Software:
        """Software that sums the gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWeights:
    """Collectives of the weights of a part of a stage, one after the other; none where nothing is exchanged."""

    gather: tuple[PlacedCollective, ...]
    """Of weights, as they are kept: of what all replicas share, and of experts."""
    reduce: tuple[PlacedCollective, ...]
    """Likewise of gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeights:
    """Collectives of the weights of a stage."""

    block: PartWeights
    dense_block: PartWeights | None
    """Of a block without experts where others have them."""
    outer: PartWeights
    """Of embedding and head, as far as the stage has them."""
    gather_sms: int
    reduce_sms: int
    """SMs of each gather, and of each reduction."""
    prefetch: int
    """Blocks that are gathered ahead."""

    def sms(self, collective: PlacedCollective) -> int:
        """Return the SMs of a collective of a part."""
        return self.gather_sms if collective.kind is CollectiveKind.ALL_GATHER else self.reduce_sms

    def of_block(self, *, dense: bool) -> PartWeights:
        """Return those of a block, with experts or `dense`."""
        return self.dense_block if dense and self.dense_block else self.block


NO_EXCHANGE = PartWeights(gather=(), reduce=())
WITHOUT_EXCHANGES = ShardedWeights(
    block=NO_EXCHANGE, dense_block=None, outer=NO_EXCHANGE, gather_sms=0, reduce_sms=0, prefetch=1
)
"""With these the steps of an instruction are cut as for collectives of weights, and none of them is in it."""


def sharded_weights(
    config: WeightLayout, stage: int, sm_count: int, *, first: bool, last: bool
) -> ShardedWeights | None:
    """Return the collectives of a stage, or of its chunk; None where gradients are not sharded.

    Args:
        config: the workload, or a slice of it.
        stage: from 0; its replicas may lie on other nodes than those of another.
        sm_count: SMs of each collective that `parallelism.fsdp` has none for.
        first: whether the stage has the embedding.
        last: whether it has final norm and head.
    """
    parallelism = config.parallelism
    if not parallelism.shards_gradients:
        return None
    trained = trained_parameters(config.model, parallelism, config.training)
    gathered = gathered_bytes(config.model, parallelism, config.training)
    experts = trained_expert_parameters(config.model, parallelism, config.training)
    dense, scopes = Scope.DENSE_BLOCK, [Scope.EMBEDDING] * first + [Scope.HEAD] * last
    exchanged, fsdp = partial(_exchanged, config, stage, sm_count), parallelism.fsdp
    return ShardedWeights(
        block=exchanged(gathered[Scope.BLOCK], trained[Scope.BLOCK], experts.get(Scope.BLOCK, 0)),
        dense_block=exchanged(gathered[dense], trained[dense], 0) if dense in trained else None,
        outer=exchanged(
            sum(gathered[scope] for scope in scopes),
            sum(trained[scope] for scope in scopes),
            sum(experts.get(scope, 0) for scope in scopes),
        ),
        gather_sms=NVLS_SMS if fsdp.nvls else fsdp.gather_sms or sm_count,
        reduce_sms=fsdp.reduce_sms or sm_count,
        prefetch=fsdp.prefetch,
    )


def _exchanged(
    config: WeightLayout, stage: int, sm_count: int, gathered: float, trained: int, experts: int
) -> PartWeights:
    """Return the collectives of a part, `experts` of whose `trained` parameters are routed experts'."""
    parallelism, software, linked = config.parallelism, config.software, config.gpu.linked_gpus(config.parallelism.gpus)
    ranks = parallelism.sharing_ranks(stage, over_context=software.shares_over_context)
    of_experts = parallelism.expert_sharing_ranks(stage)
    if len(of_experts) == len(ranks):  # the same ones: what is of a block is one group
        experts = 0
    gradient_bytes = config.training.gradient_bytes(software.gradient_bytes)
    by_kind: dict[CollectiveKind, list[PlacedCollective]] = {}
    for group, members, weights, values in (
        ("dp", ranks, gathered - BF16_BYTES * experts, trained - experts),
        ("expert-dp", of_experts, BF16_BYTES * experts, experts),
    ):
        placement = placement_of(members, linked)
        for kind, message_bytes in (
            (CollectiveKind.ALL_GATHER, round(weights) * parallelism.shards_weights),
            (CollectiveKind.REDUCE_SCATTER, gradient_bytes * values),
        ):
            collective = PlacedCollective(
                kind=kind,
                group=group,
                group_size=len(members),
                message_bytes=message_bytes,
                fused=1,
                nodes=placement.nodes,
                per_node=placement.per_node,
            )
            if kind is CollectiveKind.ALL_GATHER and parallelism.fsdp.nvls and placement.nodes == 1:
                collective = SwitchedGather(
                    **{f.name: getattr(collective, f.name) for f in fields(collective)}, filled_by=sm_count
                )
            by_kind.setdefault(kind, []).extend([collective] if message_bytes and len(members) > 1 else [])
    return PartWeights(
        gather=tuple(by_kind[CollectiveKind.ALL_GATHER]), reduce=tuple(by_kind[CollectiveKind.REDUCE_SCATTER])
    )


def least_exchanged(
    weights: ShardedWeights, direction: Direction, layers: int, dense: int
) -> Counter[PlacedCollective]:
    """Return collectives of weights that an instruction has at least: what is recomputed first may gather once more.

    Args:
        weights: the collectives.
        direction: of the instruction.
        layers: blocks, of which
        dense: have no experts where others have them.
    """
    gathers, reduces = direction is not Direction.WEIGHT_GRADIENT, direction in COMPUTING_GRADIENTS
    least = Counter[PlacedCollective]()
    for part, count, is_gathered in (
        (weights.block, layers - dense, gathers),
        (weights.of_block(dense=True), dense, gathers),
        (weights.outer, 1, direction is Direction.FORWARD),
    ):
        for collective in (*(part.gather if is_gathered else ()), *(part.reduce if reduces else ())):
            least[collective] += count
    return least


def with_sharded_weights(
    blocks: Sequence[Sequence[Step]],
    direction: Direction,
    reduces: Sequence[bool],
    dense: Sequence[bool],
    weights: ShardedWeights,
) -> list[Step]:
    """Return the steps of an instruction's blocks with the collectives of their weights.

    Args:
        blocks: steps of each pass through a block, in order of execution.
        direction: of the instruction.
        reduces: whether each pass computes weight gradients.
        dense: whether each pass is through a block without experts.
        weights: the collectives.
    """
    of_passes = [weights.of_block(dense=is_dense) for is_dense in dense]
    gathers = direction is not Direction.WEIGHT_GRADIENT  # which reads activations only
    opening = [*weights.outer.gather] if direction is Direction.FORWARD else []
    opening += of_passes[0].gather if gathers else ()
    steps = [_alone(collective, weights) for collective in opening]
    ahead = _ahead(blocks, [part.gather for part in of_passes], weights.prefetch)
    for number, block in enumerate(blocks):
        behind = of_passes[number - 1].reduce if number and reduces[number - 1] else ()
        steps += _beside(block, ahead[number] if gathers else (), behind, weights)
    closing = (*of_passes[-1].reduce, *weights.outer.reduce) if direction in COMPUTING_GRADIENTS else ()
    return [*steps, *(_alone(collective, weights) for collective in closing)]


def _ahead(
    blocks: Sequence[Sequence[Step]], gathers: Sequence[Sequence[PlacedCollective]], prefetch: int
) -> list[list[PlacedCollective]]:
    """Return what of gathers runs beside each block: those of the next, or parts of those of the next few.

    One that may begin several blocks ahead is cut by the FLOPs of those; parts of one group beside a block are one.
    """
    flops = [sum(_flops(step.operators) for step in block) for block in blocks]
    beside: list[dict[str, PlacedCollective]] = [{} for _ in blocks]
    for number in range(1, len(blocks)):
        window = {place: flops[place] for place in range(max(0, number - prefetch), number)}
        for gather in gathers[number]:
            for place, part in _parts(gather, window):
                other = beside[place].get(gather.group)
                more = other.message_bytes if other else 0
                beside[place][gather.group] = replace(part, message_bytes=part.message_bytes + more)
    return [list(parts.values()) for parts in beside]


def _beside(
    steps: Sequence[Step],
    gathers: Sequence[PlacedCollective],
    reduces: Sequence[PlacedCollective],
    weights: ShardedWeights,
) -> list[Step]:
    """Put collectives beside the operators of a block."""
    if max(len(gathers), len(reduces)) > 1:
        return [Step(within=tuple(steps), along=tuple(_alone(moving, weights) for moving in (*gathers, *reduces)))]
    runs = [run for step in steps for run in _apart(step)]
    gather, reduce = next(iter(gathers), None), next(iter(reduces), None)
    if gather and reduce:
        runs = _cut_first(runs)
    free = [number for number, run in enumerate(runs) if run.collective is None and run.operators]
    split = _first_third([runs[number] for number in free]) if gather and reduce else len(free)
    for collective, places in ((gather, free[:split]), (reduce, free[split if gather else 0 :])):
        if collective is None:
            continue
        if len(free) <= FEW:  # whole beside the first or the last
            places = places[:1] if collective is gather else places[-1:]  # noqa: PLW2901 - a part of them
        for number, part in _parts(collective, {number: _flops(runs[number].operators) for number in places}):
            runs[number] = replace(runs[number], collective=part, launch=0, sm_count=weights.sms(part))
        if not places:
            runs.append(_alone(collective, weights))
    return runs


def _parts(collective: PlacedCollective, flops: Mapping[int, int]) -> Iterator[tuple[int, PlacedCollective]]:
    """Cut a collective in parts that run beside so many FLOPs each, without those that are hardly any.

    It is one to whoever runs it: a step has no more than a part, and sequence parallelism cuts a block in many.
    """
    total = sum(flops.values())
    kept = {number: share for number, share in flops.items() if share > LITTLE * total} or flops
    left, left_bytes = sum(kept.values()), collective.message_bytes
    for number, share in kept.items():
        part = left_bytes * share // left if share < left else left_bytes
        left, left_bytes = left - share, left_bytes - part
        yield number, replace(collective, message_bytes=part)


def _first_third(runs: Sequence[Step]) -> int:
    """Return how many runs have a third of all FLOPs, never all: a gather moves half of what a reduction does."""
    done = list(itertools.accumulate(_flops(run.operators) for run in runs))
    return min(next((n for n, flops in enumerate(done, 1) if 3 * flops >= done[-1]), 1), max(len(runs) - 1, 1))


def _flops(operators: Sequence[Operator]) -> int:
    return sum(operator.flops for operator in operators)


def _apart(step: Step) -> list[Step]:
    """The operators before a step's own collective starts, and the rest of the step."""
    if step.collective is None:
        return [step]
    before, after = step.operators[: step.launch], step.operators[step.launch :]
    return [Step(operators=before), replace(step, operators=after, launch=0)] if before else [step]


def _cut_first(runs: list[Step]) -> list[Step]:
    """Cut in two the only operators that have no collective, by FLOPs: a third for the gather, which moves half."""
    free = [n for n, run in enumerate(runs) if run.collective is None and run.operators]
    if len(free) != 1 or len(runs[free[0]].operators) == 1:
        return runs
    place, operators = free[0], runs[free[0]].operators
    cut = next(n for n in range(1, len(operators) + 1) if 3 * _flops(operators[:n]) >= _flops(operators))
    cut = min(cut, len(operators) - 1)
    return [*runs[:place], Step(operators=operators[:cut]), Step(operators=operators[cut:]), *runs[place + 1 :]]


def _alone(collective: PlacedCollective, weights: ShardedWeights) -> Step:
    return Step(collective=collective, sm_count=weights.sms(collective))
