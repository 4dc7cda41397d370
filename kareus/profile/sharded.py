"""Collectives of weights that data-parallel replicas share out, beside the blocks of an instruction.

With sharded weights (FSDP, ZeRO stage 3) every replica holds a part of each block and gathers the rest right before the
block runs, forward and backward; with sharded gradients (ZeRO stage 2) too, the gradients of a block are
reduce-scattered as soon as its backward has computed them, in every microbatch. What one block needs or leaves is one
collective. A gather is prefetched one block ahead and a reduction runs one block behind, so that both run beside the
computation of another block; where they take longer, the next block waits. Exposed are the gather of an instruction's
first block, the reduction of its last one, and, of stages that have them, gather and reduction of embedding and head,
which are one group: gathered before a forward, kept until the end of the backward.

A step of a program has one collective, so the blocks' own collectives get steps of their own, and gather and reduction
are put beside different operators of a block: the gather beside the first, the reduction beside the rest, in parts
where these are in many steps. Blocks run sequentially.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.network import Placement, placement_of
from kareus.graph.program import Step
from kareus.graph.records import CollectiveKind, Direction, Operator, PlacedCollective, Scope
from kareus.model.config import Model, Parallelism
from kareus.model.parameters import scope_parameters, trained_parameters
from kareus.model.precision import BF16_BYTES
from kareus.model.training_options import TrainingOptions
from kareus.software.record import Software

FEW = 2
"""Stretches of operators between collectives of a block without sequence parallelism, at most."""
LITTLE = 0.05
"""Share of the FLOPs of a block below which nothing is put beside a stretch: norms are over before it has begun."""
COMPUTING_GRADIENTS = (Direction.BACKWARD, Direction.WEIGHT_GRADIENT)
"""Directions that compute weight gradients."""


class WeightLayout(Protocol):
    """What decides the collectives of weights: a workload, or a slice of it."""

    @property
    def model(self) -> Model:
        """The network."""

    @property
    def parallelism(self) -> Parallelism:
        """Its layout."""

    @property
    def gpu(self) -> Gpu:
        """The GPU, on whose nodes the replicas lie."""

    @property
    def software(self) -> Software:
        """Software that sums the gradients."""

    @property
    def training(self) -> TrainingOptions:
        """What else is trained otherwise than usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeights:
    """Collectives of the weights of a stage; None where nothing is exchanged."""

    gather: PlacedCollective | None
    """Of a block's bf16 weights."""
    reduce: PlacedCollective
    """Of a block's gradients."""
    outer_gather: PlacedCollective | None
    """Of embedding and head, as far as the stage has them."""
    outer_reduce: PlacedCollective | None
    sm_count: int
    """SMs of each."""


def sharded_weights(
    config: WeightLayout, stage: int, sm_count: int, *, first: bool, last: bool
) -> ShardedWeights | None:
    """Return the collectives of a stage, or of its chunk; None where gradients are not sharded.

    Args:
        config: the workload, or a slice of it.
        stage: from 0; its replicas may lie on other nodes than those of another.
        sm_count: SMs of each collective.
        first: whether the stage has the embedding.
        last: whether it has final norm and head.
    """
    parallelism, software = config.parallelism, config.software
    if not parallelism.shards_gradients:
        return None
    parts = scope_parameters(config.model, parallelism)
    ranks = parallelism.sharing_ranks(stage, over_context=software.shares_over_context)
    placement = placement_of(ranks, config.gpu.linked_gpus(parallelism.gpus))
    gather = partial(_placed, CollectiveKind.ALL_GATHER, BF16_BYTES, len(ranks), placement)
    gradient_bytes = config.training.gradient_bytes(software.gradient_bytes)
    reduce = partial(_placed, CollectiveKind.REDUCE_SCATTER, gradient_bytes, len(ranks), placement)
    trained = trained_parameters(config.model, parallelism, config.training)
    outer = first * parts[Scope.EMBEDDING] + last * parts[Scope.HEAD]
    outer_trained = first * trained[Scope.EMBEDDING] + last * trained[Scope.HEAD]
    gathers = parallelism.shards_weights
    return ShardedWeights(
        gather=gather(parts[Scope.BLOCK]) if gathers else None,
        reduce=reduce(trained[Scope.BLOCK]),
        outer_gather=gather(outer) if gathers and outer else None,
        outer_reduce=reduce(outer_trained) if outer_trained else None,
        sm_count=sm_count,
    )


def with_sharded_weights(
    blocks: Sequence[Sequence[Step]], direction: Direction, reduces: Sequence[bool], weights: ShardedWeights
) -> list[Step]:
    """Return the steps of an instruction's blocks with the collectives of their weights.

    Args:
        blocks: steps of each pass through a block, in order of execution.
        direction: of the instruction.
        reduces: whether each pass computes weight gradients.
        weights: the collectives.
    """
    opening = [weights.outer_gather] if direction is Direction.FORWARD else []
    gathered = None if direction is Direction.WEIGHT_GRADIENT else weights.gather  # it reads activations only
    steps = [_alone(collective, weights) for collective in [*opening, gathered] if collective]
    for number, block in enumerate(blocks):
        gather = gathered if number + 1 < len(blocks) else None
        reduce = weights.reduce if number and reduces[number - 1] else None
        steps += _beside(block, gather, reduce, weights.sm_count)
    computes = direction in COMPUTING_GRADIENTS
    closing = [weights.reduce, weights.outer_reduce] if computes else []
    return [*steps, *(_alone(collective, weights) for collective in closing if collective)]


def _beside(
    steps: Sequence[Step], gather: PlacedCollective | None, reduce: PlacedCollective | None, sm_count: int
) -> list[Step]:
    """Put at most two collectives beside the operators of a block."""
    runs = [run for step in steps for run in _apart(step)]
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
            runs[number] = replace(runs[number], collective=part, launch=0, sm_count=sm_count)
        if not places:
            runs.append(Step(collective=collective, sm_count=sm_count))
    return runs


def _parts(collective: PlacedCollective, flops: Mapping[int, int]) -> Iterator[tuple[int, PlacedCollective]]:
    """Cut a collective in parts that run beside so many FLOPs each, without those that are hardly any.

    It is one to whoever runs it: a step has no more than a part, and sequence parallelism cuts a block in many.
    """
    total = sum(flops.values())
    kept = {number: own for number, own in flops.items() if own > LITTLE * total} or flops
    left, left_bytes = sum(kept.values()), collective.message_bytes
    for number, own in kept.items():
        part = left_bytes * own // left if own < left else left_bytes
        left, left_bytes = left - own, left_bytes - part
        yield number, replace(collective, message_bytes=part)


def _first_third(runs: Sequence[Step]) -> int:
    """Return how many runs have a third of all FLOPs, never all: a gather moves half of what a reduction does."""
    done = list(itertools.accumulate(_flops(run.operators) for run in runs))
    return min(next((n for n, own in enumerate(done, 1) if 3 * own >= done[-1]), 1), max(len(runs) - 1, 1))


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
    return Step(collective=collective, sm_count=weights.sm_count)


def _placed(
    kind: CollectiveKind, bytes_each: int, replicas: int, placement: Placement, parameters: int
) -> PlacedCollective:
    """Over the replicas, of so many bytes of each parameter."""
    return PlacedCollective(
        kind=kind,
        group="dp",
        group_size=replicas,
        message_bytes=bytes_each * parameters,
        fused=1,
        nodes=placement.nodes,
        per_node=placement.per_node,
    )
