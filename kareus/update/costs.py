"""What the instructions of the update take at each clock, by the GPU model.

Nothing of it is measured, on any testbed: groups of replicas span more GPUs than a profiler has. An instruction of the
update is bound by memory or by links, so that low clocks cost it little time. Its point is that of its own clock; what
of a reduction runs beside the last backward is taken as if that ran at its fastest point, so that an iteration with a
slower one ends no later than planned.

Bytes that the optimizer step moves for each of its parameters, as the engine runs it (`kareus.training.optimizer`):

- norm: reads the fp32 gradient (4);
- clipping: reads and writes it (8);
- AdamW: reads gradient, master weight and both moments, writes master weight and moments, all fp32 (16 and 12);
- publishing: reads the master weight, writes the bf16 one (4 and 2);
- zeroing: writes the fp32 gradients, those of other replicas' shards too (4).

Gradients of norms that are partial on the GPUs of a tensor-parallel group are summed where reductions end, or, on
stages that reduce none, before the gradient norm.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.energy import collective_switching, held_power_w, idle_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import step_cost
from kareus.gpu_model.network import placed_collective_s
from kareus.gpu_model.overlap import slowdowns
from kareus.graph.interleave import block_segments
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import BlockGraph, Direction, Operator, OperatorKind, Scope, Segment
from kareus.model.config import Model, Parallelism
from kareus.model.parameters import embedding_parameters, partial_parameters, reduced_parameters, scope_parameters
from kareus.model.precision import ADAMW_BYTES, BF16_BYTES, FP32_BYTES
from kareus.profile.programs import StageShape, chunk_shapes, outer_segments, sequential_steps
from kareus.update.collectives import (
    Placed,
    exchange_collectives,
    gather_collectives,
    norm_collectives,
    norm_gradient_collectives,
    reduction_collectives,
)
from kareus.update.directions import update_directions
from kareus.update.reduction import Slowdown, added_time_s, buckets_of, stage_buckets, window_s

CostsByClock = Array
"""Seconds and joules of one GPU at each clock, [2, clocks]."""


class UpdateSubject(Protocol):
    """A slice of a workload that decides what its update costs."""

    @property
    def model(self) -> Model:
        """The network."""

    @property
    def parallelism(self) -> Parallelism:
        """Its layout, with the layers of each stage."""

    @property
    def gpu(self) -> Gpu:
        """The GPU and its node."""

    @property
    def recomputation(self) -> Recomputation:
        """What a backward recomputes."""

    @property
    def split_backward(self) -> bool:
        """Whether weight gradients are computed after the input gradients."""

    @property
    def chunks(self) -> int:
        """Chunks of each stage's layers."""

    @property
    def default_collective_sm_count(self) -> int:
        """SMs of collectives that nothing is chosen for."""


def update_costs(
    config: UpdateSubject, graph: BlockGraph, stage: int, backward_s: Sequence[float], clocks_mhz: Array
) -> dict[Direction, CostsByClock]:
    """Return what each instruction of a stage's update takes at each clock.

    Args:
        config: the workload.
        graph: operator graph of a block, of a whole microbatch.
        stage: from 0.
        backward_s: time of the backward of each chunk of the stage, which is taken to run beside the reduction.
        clocks_mhz: [clocks].
    """
    costs: dict[Direction, CostsByClock] = {}
    for direction in update_directions(config, stage):
        match direction:
            case Direction.GRADIENT_REDUCTION:
                costs[direction] = _reduction(config, graph, stage, backward_s, clocks_mhz)
            case Direction.EMBEDDING_EXCHANGE:
                costs[direction] = _exchange(config, clocks_mhz)
            case _:
                costs[direction] = np.sum(list(step_costs(config, stage, clocks_mhz).values()), axis=0)
    return costs


def step_costs(config: UpdateSubject, stage: int, clocks_mhz: Array) -> dict[str, CostsByClock]:
    """Return what the parts of the instruction `update` take: `gradient norm`, `optimizer step`, `weight gathering`."""
    parallelism, gpu = config.parallelism, config.gpu
    held = stage_parameters(config, stage)
    own = -(-held // parallelism.dp) if parallelism.shards_states else held
    norm = [_memory_bound("norm", read=FP32_BYTES * own, written=0)]
    step = [
        _memory_bound("clip", read=FP32_BYTES * own, written=FP32_BYTES * own),
        _memory_bound("adamw", read=(FP32_BYTES + ADAMW_BYTES) * own, written=ADAMW_BYTES * own),
        _memory_bound("publish", read=FP32_BYTES * own, written=BF16_BYTES * own),
        _memory_bound("zero", read=0, written=FP32_BYTES * (own if parallelism.shards_gradients else held)),
    ]
    sums = _collectives(config, norm_collectives(parallelism, gpu, stage), clocks_mhz)
    if Direction.GRADIENT_REDUCTION not in update_directions(config, stage):
        sums += _norm_sums(config, stage, clocks_mhz)
    gathers = gather_collectives(parallelism, gpu, stage, held)
    return {
        "gradient norm": _operators(gpu, norm, clocks_mhz) + sums,
        "optimizer step": _operators(gpu, step, clocks_mhz),
        **({"weight gathering": _collectives(config, gathers, clocks_mhz)} if gathers else {}),
    }


def stage_parameters(config: UpdateSubject, stage: int) -> int:
    """Return the parameters on one GPU of a stage."""
    return _of_stage(scope_parameters(config.model, config.parallelism), config.parallelism, stage)


def _of_stage(parts: Mapping[Scope, int], parallelism: Parallelism, stage: int) -> int:
    return (
        parallelism.split[stage] * parts[Scope.BLOCK]
        + (stage == 0) * parts[Scope.EMBEDDING]
        + (stage == parallelism.pp - 1) * parts[Scope.HEAD]
    )


def _norm_sums(config: UpdateSubject, stage: int, clocks_mhz: Array) -> CostsByClock:
    """What the sums over tensor parallelism of norms' gradients take, of the shard that the GPU optimizes."""
    parallelism = config.parallelism
    partial = _of_stage(partial_parameters(config.model, parallelism), parallelism, stage)
    own = -(-partial // parallelism.dp) if parallelism.shards_states else partial
    return _collectives(config, norm_gradient_collectives(parallelism, config.gpu, stage, own), clocks_mhz)


def _reduction(
    config: UpdateSubject, graph: BlockGraph, stage: int, backward_s: Sequence[float], clocks_mhz: Array
) -> CostsByClock:
    """What the reduction adds to the last backward of the stage, with the sums of norms after it; energy of it all."""
    gpu, parts = config.gpu, reduced_parameters(config.model, config.parallelism)
    buckets = _buckets(config, graph, stage, backward_s)
    placed = {
        scope: [
            collective
            for parameters in parts[scope]
            for collective in reduction_collectives(config.parallelism, gpu, stage, parameters)
        ]
        for scope in dict.fromkeys(scope for scope, _ in buckets)
    }
    times_s = {scope: _times_s(config, own, clocks_mhz) for scope, own in placed.items()}
    slower = _slowdowns(config, graph, placed, clocks_mhz)
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
    held_j = held_power_w(gpu, config.default_collective_sm_count, clocks_mhz) * held_s
    added = np.array([added_s, moving_j + held_j + idle_power_w(gpu, clocks_mhz) * added_s])
    return added + _norm_sums(config, stage, clocks_mhz)


def _buckets(
    config: UpdateSubject, graph: BlockGraph, stage: int, backward_s: Sequence[float]
) -> list[tuple[Scope, float]]:
    """Buckets of a stage as `stage_buckets`, by what segments take; none before the last if weight gradients wait."""
    shapes = chunk_shapes(config.parallelism.split, config.chunks)
    own = [shapes[stage, chunk] for chunk in range(config.chunks)]
    of_chunks = [
        buckets_of(graph, shape, _segment_s(config, graph, shape), recomputation=config.recomputation) for shape in own
    ]
    found = stage_buckets(config.parallelism.pp, of_chunks, backward_s)
    if not config.split_backward:
        return found
    whole_s = window_s(config.parallelism.pp, backward_s)
    return [(scope, whole_s) for scope, _ in found]


def _segment_s(config: UpdateSubject, graph: BlockGraph, shape: StageShape) -> dict[Segment, float]:
    """Seconds of each segment of a sequential backward at the maximum clock."""
    recomputation, clock_mhz = config.recomputation, np.array([float(config.gpu.maximum_clock_mhz)])
    segments = dict.fromkeys(
        (
            *outer_segments(graph, shape, Direction.BACKWARD),
            *block_segments(graph, 1, Direction.BACKWARD, recomputation=recomputation),
        )
    )
    steps = sequential_steps(segments, config.default_collective_sm_count)
    return {
        segment: float(
            step_cost(config.gpu, step.operators, step.collective, clock_mhz, step.sm_count, step.launch)[0, 0]
        )
        for segment, step in zip(segments, steps, strict=True)
    }


def _slowdowns(
    config: UpdateSubject, graph: BlockGraph, placed: Mapping[Scope, Sequence[Placed]], clocks_mhz: Array
) -> list[Slowdown]:
    """Slowdown of a backward through the blocks and of the first collective of a block's reduction, at each clock."""
    operators = [operator for segment in graph.backward for operator in segment.operators]
    collective, placement = placed[Scope.BLOCK][0]
    sm_counts = np.full_like(clocks_mhz, config.default_collective_sm_count)
    alone_s = placed_collective_s(config.gpu, collective, placement, clocks_mhz, sm_counts)
    factors = slowdowns(config.gpu, operators, (collective, alone_s), clocks_mhz, config.default_collective_sm_count)
    return [Slowdown(float(backward), float(reduction)) for backward, reduction in zip(*factors, strict=True)]


def _exchange(config: UpdateSubject, clocks_mhz: Array) -> CostsByClock:
    parameters = embedding_parameters(config.model, config.parallelism)
    own = -(-parameters // config.parallelism.dp) if config.parallelism.shards_states else parameters
    return _collectives(config, exchange_collectives(config.parallelism, config.gpu, own), clocks_mhz)


def _operators(gpu: Gpu, operators: Sequence[Operator], clocks_mhz: Array) -> CostsByClock:
    return step_cost(gpu, operators, None, clocks_mhz, 0, 0)[:2]


def _collectives(config: UpdateSubject, placed: Sequence[Placed], clocks_mhz: Array) -> CostsByClock:
    """CostsByClock of collectives one after the other, with nothing beside them."""
    total = np.zeros((2, len(clocks_mhz)))
    for one in placed:
        time_s = _times_s(config, [one], clocks_mhz)
        held_j = held_power_w(config.gpu, config.default_collective_sm_count, clocks_mhz) * time_s
        busy_j = collective_switching(config.gpu, one[0]).busy_j(config.gpu, clocks_mhz, time_s)
        total += np.array([time_s, busy_j + held_j])
    return total


def _times_s(config: UpdateSubject, placed: Sequence[Placed], clocks_mhz: Array) -> Array:
    sm_counts, total_s = np.full_like(clocks_mhz, config.default_collective_sm_count), np.zeros_like(clocks_mhz)
    for collective, placement in placed:
        total_s += placed_collective_s(config.gpu, collective, placement, clocks_mhz, sm_counts)
    return total_s


def _memory_bound(name: str, *, read: int, written: int) -> Operator:
    """An operator over all of a stage's weights; its arithmetic is far below what HBM takes."""
    return Operator(
        name=name,
        kind=OperatorKind.MEMORY,
        shape=(max(read, written) // FP32_BYTES,),
        flops=0,
        bytes_read=read,
        bytes_written=written,
        kernels=1,
    )
