"""Costs of the gradient reduction of a stage at each clock, by the GPU model: in buckets beside the last backward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.energy import collective_switching, held_power_w, idle_power_w
from kareus.gpu_model.model import KnownSteps, known_step_cost
from kareus.gpu_model.network import placed_collective_s
from kareus.gpu_model.overlap import slowdowns
from kareus.graph.interleave import block_segments
from kareus.graph.records import BlockGraph, Direction, Scope, Segment
from kareus.model.parameters import reduced_parameters, trained_expert_parameters
from kareus.profile.programs import StageShape, laid_out_shapes, outer_segments, sequential_steps
from kareus.software.record import Reduction
from kareus.update.collectives import Placed, expert_reduction_collectives, reduction_collectives
from kareus.update.reduction import Bucket, Slowdown, added_time_s, buckets_of, stage_buckets, window_s
from kareus.update.work import (
    CostsByClock,
    UpdateSubject,
    collectives_cost,
    collectives_s,
    messages_s,
    norm_sums,
    sm_count_of,
    stage_expert_parameters,
    stage_parameters,
    summing_software,
)


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """What updates share whose GPUs compute the same of a block, on one GPU and by one software: read and extended."""

    steps: KnownSteps = field(default_factory=dict)
    slowdowns: dict[object, list[Slowdown]] = field(default_factory=dict)
    """By what is reduced beside the backward, and clocks."""
    buckets: dict[object, tuple[Bucket, ...]] = field(default_factory=dict)
    """By shape of a chunk, and recomputation."""


def reduction_cost(
    config: UpdateSubject,
    graph: BlockGraph,
    stage: int,
    backward_s: Sequence[float],
    clocks_mhz: Array,
    shared: SharedCosts,
) -> CostsByClock:
    """What the reduction adds to the last backward of the stage, with the sums of norms after it; energy of it all."""
    gpu, software = config.gpu, summing_software(config)
    parts = reduced_parameters(config.model, config.parallelism, config.training)
    whole_sum = software.sums_whole and config.parallelism.shards_states
    if whole_sum or software.reduction is Reduction.WHOLE:
        experts = stage_expert_parameters(config, stage)
        whole = _reductions(config, stage, [stage_parameters(config, stage) - experts])
        whole += expert_reduction_collectives(config.parallelism, gpu, software, stage, experts)
        return collectives_cost(config, whole, clocks_mhz) + norm_sums(config, stage, clocks_mhz)
    buckets = _buckets(config, graph, stage, backward_s, shared)
    placed = {scope: _reductions(config, stage, parts[scope]) for scope in dict.fromkeys(scope for scope, _ in buckets)}
    for scope, experts in trained_expert_parameters(config.model, config.parallelism, config.training).items():
        if scope in placed:
            placed[scope] += expert_reduction_collectives(config.parallelism, gpu, software, stage, experts)
    if not any(placed.values()):  # a stage of dense blocks, of one replica of experts that others reduce
        return norm_sums(config, stage, clocks_mhz)
    times_s = {
        scope: collectives_s(config, collectives, clocks_mhz) + messages_s(config, collectives)
        for scope, collectives in placed.items()
    }
    slower = _slowdowns(config, graph, placed, clocks_mhz, shared)
    whole_s = window_s(config.parallelism.pp, backward_s)
    added_s = np.array(
        [
            added_time_s(whole_s, [at_s for _, at_s in buckets], [times_s[scope][n] for scope, _ in buckets], slower[n])
            for n in range(len(clocks_mhz))
        ]
    )
    moving = [collective_switching(gpu, collective) for scope, _ in buckets for collective, _ in placed[scope]]
    moving_j = sum(switching.at_j(gpu, clocks_mhz) for switching in moving)
    held_s = sum(times_s[scope] for scope, _ in buckets)  # alone: that they hold SMs longer beside it is left out
    held_j = held_power_w(gpu, sm_count_of(config), clocks_mhz) * held_s
    added_s += (1 - software.hidden_reduction) * (held_s - added_s)
    added = np.array([added_s, moving_j + held_j + idle_power_w(gpu, clocks_mhz) * added_s])
    return added + norm_sums(config, stage, clocks_mhz)


def _reductions(config: UpdateSubject, stage: int, parameters: Sequence[int]) -> list[Placed]:
    """Return the collectives that sum the gradients of parameters that are reduced one after the other."""
    return [
        collective
        for number in parameters
        for collective in reduction_collectives(config.parallelism, config.gpu, summing_software(config), stage, number)
    ]


def _buckets(
    config: UpdateSubject, graph: BlockGraph, stage: int, backward_s: Sequence[float], shared: SharedCosts
) -> list[tuple[Scope, float]]:
    """Buckets of a stage as `stage_buckets`, by what segments take; none before the last if weight gradients wait."""
    shapes = laid_out_shapes(config)
    of_chunks = []
    for chunk in range(config.chunks):
        shape = shapes[stage, chunk]
        key = shape, config.recomputation
        if key not in shared.buckets:
            seconds = _segment_s(config, graph, shape, shared.steps)
            shared.buckets[key] = buckets_of(graph, shape, seconds, recomputation=config.recomputation)
        of_chunks.append(shared.buckets[key])
    buckets = stage_buckets(config.parallelism.pp, of_chunks, backward_s)
    if not config.split_backward:
        return buckets
    whole_s = window_s(config.parallelism.pp, backward_s)
    return [(scope, whole_s) for scope, _ in buckets]


def _segment_s(
    config: UpdateSubject, graph: BlockGraph, shape: StageShape, step_costs: KnownSteps
) -> dict[Segment, float]:
    """Seconds of each segment of a sequential backward at the maximum clock."""
    recomputation, clock_mhz = config.recomputation, np.array([float(config.gpu.maximum_clock_mhz)])
    segments = dict.fromkeys(
        (
            *outer_segments(graph, shape, Direction.BACKWARD, recomputation=recomputation),
            *block_segments(graph, shape.layers, Direction.BACKWARD, recomputation=recomputation, dense=shape.dense),
        )
    )
    steps = sequential_steps(segments, config.default_collective_sm_count)
    return {
        segment: float(known_step_cost(config.gpu, step, clock_mhz, step_costs)[0, 0])
        for segment, step in zip(segments, steps, strict=True)
    }


def _slowdowns(
    config: UpdateSubject,
    graph: BlockGraph,
    placed: Mapping[Scope, Sequence[Placed]],
    clocks_mhz: Array,
    shared: SharedCosts,
) -> list[Slowdown]:
    """Slowdown of a backward through the blocks and of the first collective of a block's reduction, at each clock."""
    scope = next(scope for scope in (Scope.BLOCK, Scope.DENSE_BLOCK) if placed.get(scope))
    key = scope, placed[scope][0], sm_count_of(config), clocks_mhz.tobytes()
    if key not in shared.slowdowns:
        shared.slowdowns[key] = _slowdowns_beside(config, graph, scope, placed[scope][0], clocks_mhz)
    return shared.slowdowns[key]


def _slowdowns_beside(
    config: UpdateSubject, graph: BlockGraph, scope: Scope, placed: Placed, clocks_mhz: Array
) -> list[Slowdown]:
    backward = graph.backward if scope is Scope.BLOCK else graph.dense_backward
    operators = [operator for segment in backward for operator in segment.operators]
    collective, placement = placed
    sm_counts = np.full_like(clocks_mhz, sm_count_of(config))
    alone_s = placed_collective_s(config.gpu, collective, placement, clocks_mhz, sm_counts)
    factors = slowdowns(config.gpu, operators, (collective, alone_s), clocks_mhz, sm_count_of(config))
    return [Slowdown(float(backward), float(reduction)) for backward, reduction in zip(*factors, strict=True)]
