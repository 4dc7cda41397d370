"""Costs of the instructions of the update at each clock, by the GPU model.

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
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.energy import collective_switching, held_power_w, idle_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import KnownSteps, known_step_cost, run_program
from kareus.gpu_model.network import message_latency_s, placed_collective_s
from kareus.gpu_model.overlap import slowdowns
from kareus.gpu_model.thermal import sustained_j
from kareus.gpu_model.waiting import waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.interleave import block_segments
from kareus.graph.number_formats import BF16_BYTES, FORMATS, FP32_BYTES, Precision
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import (
    COMPLETING,
    BlockGraph,
    Direction,
    Operator,
    OperatorKind,
    Program,
    Scope,
    Segment,
    Step,
    instruction_directions,
)
from kareus.model.parameters import (
    embedding_parameters,
    partial_parameters,
    reduced_parameters,
    scope_parameters,
    trained_expert_parameters,
    trained_parameters,
)
from kareus.model.training_options import MasterWeights, TrainingOptions
from kareus.profile.programs import LaidOut, StageShape, laid_out_shapes, outer_segments, sequential_steps
from kareus.profile.sharded import WeightLayout
from kareus.software.kernels import weight_cast
from kareus.software.record import Reduction, Software
from kareus.update.collectives import (
    Placed,
    exchange_collectives,
    expert_gather_collectives,
    expert_reduction_collectives,
    gather_collectives,
    norm_collectives,
    norm_gradient_collectives,
    reduction_collectives,
    update_directions,
)
from kareus.update.reduction import (
    ALONE,
    Bucket,
    Slowdown,
    added_time_s,
    buckets_of,
    even_buckets,
    stage_buckets,
    window_s,
)

CostsByClock = Array
"""Seconds and joules of one GPU at each clock, [2, clocks]."""


class UpdateSubject(WeightLayout, LaidOut, Protocol):
    """A slice of a workload that decides what its update costs."""

    @property
    def precision(self) -> Precision:
        """Of the products of blocks."""

    @property
    def recomputation(self) -> Recomputation:
        """What a backward recomputes."""

    @property
    def split_backward(self) -> bool:
        """Whether weight gradients are computed after the input gradients."""

    @property
    def default_collective_sm_count(self) -> int:
        """SMs of collectives that nothing is chosen for."""


class PassTimes(NamedTuple):
    """Times of what runs beside the collectives of a stage's update, each by chunk."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    """Of what completes the weight gradients of a microbatch."""


def pass_times(config: UpdateSubject, stage: int, times_s: Mapping[InstructionKind, float]) -> PassTimes:
    """Return the times of a stage's passes out of those of all kinds of instruction."""
    directions = instruction_directions(split_backward=config.split_backward)
    completing = next(direction for direction in directions if direction in COMPLETING)
    forward_s, backward_s = (
        [times_s[InstructionKind(stage, chunk, direction)] for chunk in range(config.chunks)]
        for direction in (Direction.FORWARD, completing)
    )
    return PassTimes(forward_s, backward_s)


@dataclass(frozen=True, slots=True)
class SharedCosts:
    """What updates share whose GPUs compute the same of a block, on one GPU and by one software: read and extended."""

    steps: KnownSteps = field(default_factory=dict)
    slowdowns: dict[object, list[Slowdown]] = field(default_factory=dict)
    """By what is reduced beside the backward, and clocks."""
    buckets: dict[object, tuple[Bucket, ...]] = field(default_factory=dict)
    """By shape of a chunk, and recomputation."""


def update_costs(
    config: UpdateSubject,
    graph: BlockGraph,
    stage: int,
    passes: PassTimes,
    clocks_mhz: Array,
    shared: SharedCosts | None = None,
) -> dict[Direction, CostsByClock]:
    """Return what each instruction of a stage's update takes at each clock.

    Args:
        config: the workload.
        graph: operator graph of a block, of a whole microbatch.
        stage: from 0.
        passes: of the stage; gradients are summed beside its backwards, and weights gathered beside its forwards, as
            far as the software does so.
        clocks_mhz: [clocks].
        shared: by updates of other layouts.
    """
    costs: dict[Direction, CostsByClock] = {}
    shared = SharedCosts() if shared is None else shared
    for direction in update_directions(config, stage):
        match direction:
            case Direction.GRADIENT_REDUCTION:
                costs[direction] = _sustained(
                    config, _reduction(config, graph, stage, passes.backward_s, clocks_mhz, shared)
                )
            case Direction.EMBEDDING_EXCHANGE:
                costs[direction] = _sustained(config, _exchange(config, clocks_mhz))
            case _:
                costs[direction] = np.sum(list(step_costs(config, stage, passes, clocks_mhz).values()), axis=0)
    return costs


def step_costs(config: UpdateSubject, stage: int, passes: PassTimes, clocks_mhz: Array) -> dict[str, CostsByClock]:
    """Return what the parts of the instruction `update` take, by name; arguments as of `update_costs`.

    They are `gradient norm`, `optimizer step`, and, where there are any, `weight gathering` and `weight casting`.
    """
    parallelism, gpu = config.parallelism, config.gpu
    parameters, experts = stage_parameters(config, stage), stage_expert_parameters(config, stage)
    shard = _shard(config, parameters - experts) + _expert_shard(config, experts)
    options = config.training
    gradient = options.gradient_bytes(FP32_BYTES)
    on_host = round(options.offload_optimizer * shard)
    norm = [_memory_bound("norm", read=gradient * shard, written=0)]
    step = [
        _memory_bound("clip", read=gradient * shard, written=gradient * shard),
        *_adamw(options, gradient, shard - on_host),
        _memory_bound("zero", read=0, written=gradient * (shard if parallelism.shards_gradients else parameters)),
    ]
    sums = _collectives(config, norm_collectives(parallelism, gpu, stage), clocks_mhz)
    if Direction.GRADIENT_REDUCTION not in update_directions(config, stage):
        sums += _norm_sums(config, stage, clocks_mhz)
    gathers = gather_collectives(parallelism, gpu, config.software, stage, parameters - experts)
    gathers += expert_gather_collectives(parallelism, gpu, stage, experts)
    if options.cast_weights:
        gathers = _cast(gathers, config.precision)
    casts = FORMATS[config.precision].is_cast and not options.trains_adapters  # frozen weights stay cast
    gathering = _gathering(config, stage, gathers, passes, clocks_mhz) if gathers else None
    return {
        "gradient norm": _sustained(config, _operators(gpu, norm, clocks_mhz) + sums),
        "optimizer step": _sustained(config, _operators(gpu, step, clocks_mhz)),
        **({"optimizer on the host": _on_host(config, on_host, gradient, clocks_mhz)} if on_host else {}),
        **({"weight gathering": _sustained(config, gathering)} if gathering is not None else {}),
        **({"weight casting": _sustained(config, _weight_casts(config, stage, clocks_mhz))} if casts else {}),
    }


def _sustained(config: UpdateSubject, cost: CostsByClock) -> CostsByClock:
    """Return a cost with the energy of GPUs that train for long."""
    time_s, energy_j = cost
    return np.array([time_s, sustained_j(config.gpu, energy_j, time_s)])


def _adamw(options: TrainingOptions, gradient: int, parameters: int) -> list[Operator]:
    """Return the operators that step and publish weights; without whole master weights, those in 16 bits are read."""
    states, master = options.state_bytes, options.master_weights is MasterWeights.FP32
    read = gradient + states + (0 if master else BF16_BYTES)
    return [
        _memory_bound("adamw", read=round(read * parameters), written=round(states * parameters)),
        _memory_bound("publish", read=FP32_BYTES * parameters * master, written=BF16_BYTES * parameters),
    ]


def _cast(gathers: Sequence[Placed], precision: Precision) -> tuple[Placed, ...]:
    """Return gathers of weights as products take them; those of embedding and head are taken as cast, too."""
    share = FORMATS[precision].value_bytes / BF16_BYTES
    return tuple(
        (replace(gather, message_bytes=round(share * gather.message_bytes)), placement) for gather, placement in gathers
    )


def _on_host(config: UpdateSubject, parameters: int, gradient: int, clocks_mhz: Array) -> CostsByClock:
    """What the GPU waits for the host that steps some of the parameters: for its memory, or the link if that is slower.

    Gradients go there and new weights in 16 bits come back beside the step, piece by piece (Ren et al., ZeRO-Offload,
    ATC 2021, section 4); the host moves what `adamw` and `publish` move on a GPU. Meanwhile the GPU runs nothing, as
    while it waits for another one, and draws what GPUs do that wait while they train. What the host draws is left out.
    """
    gpu = config.gpu
    moved = sum(o.bytes_read + o.bytes_written for o in _adamw(config.training, gradient, parameters))
    sent = max(gradient, BF16_BYTES) * parameters
    waiting_s = max(moved / (gpu.host_memory_gb_per_s * 1e9), sent / (gpu.host_gb_per_s * 1e9))
    waiting_j = [waiting_power_w(gpu, float(clock_mhz)) * waiting_s for clock_mhz in clocks_mhz]
    return np.array([np.full_like(clocks_mhz, waiting_s), waiting_j])


def _gathering(
    config: UpdateSubject, stage: int, gathers: Sequence[Placed], passes: PassTimes, clocks_mhz: Array
) -> CostsByClock:
    """What gathering new weights takes, or what of it is left where it runs beside the first forwards.

    A forward needs buckets in the opposite order of that in which a backward completes them: it is a reduction beside
    the last backwards, run from its end. The forward beside it has the idle power of the hidden time; moving weights
    costs the same.
    """
    whole = _collectives(config, gathers, clocks_mhz)
    pieces = config.parallelism.split[stage] + (stage == 0) + (stage == config.parallelism.head_stage)
    waiting_s = pieces * _messages_s(config, gathers)
    whole += np.array([np.full_like(clocks_mhz, waiting_s), idle_power_w(config.gpu, clocks_mhz) * waiting_s])
    if not config.software.gather_beside_forward:
        return whole
    parts = trained_parameters(config.model, config.parallelism, config.training)
    shapes = laid_out_shapes(config)
    chunks = [even_buckets(shapes[stage, chunk]) for chunk in range(config.chunks)]
    buckets = stage_buckets(config.parallelism.pp, chunks, passes.forward_s)
    total = sum(parts[scope] for scope, _ in buckets)
    window = window_s(config.parallelism.pp, passes.forward_s)
    ready_s, shares = [at_s for _, at_s in buckets], [parts[scope] / total for scope, _ in buckets]
    exposed_s = np.array([added_time_s(window, ready_s, [s * share for share in shares], ALONE) for s in whole[0]])
    hidden_s = config.software.hidden_gather * (whole[0] - exposed_s)
    left: CostsByClock = whole - np.array([hidden_s, idle_power_w(config.gpu, clocks_mhz) * hidden_s])
    return left


def _weight_casts(config: UpdateSubject, stage: int, clocks_mhz: Array) -> CostsByClock:
    """What casting the weights of a stage's blocks to fewer bits takes."""
    parts, ends = scope_parameters(config.model, config.parallelism), (Scope.EMBEDDING, Scope.HEAD)
    values = sum(count * parts[scope] for scope, count in stage_parts(config, stage).items() if scope not in ends)
    return _operators(config.gpu, [weight_cast(values, config.precision)], clocks_mhz)


def _expert_shard(config: UpdateSubject, parameters: int) -> int:
    """Return the part of experts' parameters that one GPU optimizes: shared out as the same experts are."""
    return -(-parameters // config.parallelism.expert_sharing) if config.parallelism.shards_states else parameters


def _shard(config: UpdateSubject, parameters: int) -> int:
    """Return the part of parameters, experts apart, that one GPU optimizes."""
    parallelism = config.parallelism
    if not parallelism.shards_states:
        return parameters
    shards = len(parallelism.sharing_ranks(0, over_context=config.software.shares_over_context))
    return -(-parameters // shards)


def stage_parameters(config: UpdateSubject, stage: int) -> int:
    """Return the parameters on one GPU of a stage that are trained."""
    return _of_stage(trained_parameters(config.model, config.parallelism, config.training), config, stage)


def stage_expert_parameters(config: UpdateSubject, stage: int) -> int:
    """Return those of them that are routed experts'."""
    trained = trained_expert_parameters(config.model, config.parallelism, config.training)
    return sum(count * trained.get(scope, 0) for scope, count in stage_parts(config, stage).items())


def stage_parts(config: UpdateSubject, stage: int) -> dict[Scope, int]:
    """Return how often a stage has each part of a model."""
    shapes = laid_out_shapes(config)
    of_stage = [shapes[stage, chunk] for chunk in range(config.chunks)]
    dense = sum(shape.dense for shape in of_stage)
    counts = {
        Scope.BLOCK: sum(shape.layers for shape in of_stage) - dense,
        Scope.DENSE_BLOCK: dense,
        Scope.EMBEDDING: int(stage == 0),
        Scope.HEAD: int(stage == config.parallelism.head_stage),
    }
    return {scope: count for scope, count in counts.items() if count}


def _of_stage(parts: Mapping[Scope, int], config: UpdateSubject, stage: int) -> int:
    return sum(count * parts[scope] for scope, count in stage_parts(config, stage).items())


def _norm_sums(config: UpdateSubject, stage: int, clocks_mhz: Array) -> CostsByClock:
    """What the sums over tensor parallelism of norms' gradients take, of the shard that the GPU optimizes."""
    parallelism = config.parallelism
    frozen = config.training.trains_adapters
    partial = 0 if frozen else _of_stage(partial_parameters(config.model, parallelism), config, stage)
    sums = norm_gradient_collectives(parallelism, config.gpu, stage, _shard(config, partial))
    return _collectives(config, sums, clocks_mhz)


def _reduction(
    config: UpdateSubject,
    graph: BlockGraph,
    stage: int,
    backward_s: Sequence[float],
    clocks_mhz: Array,
    shared: SharedCosts,
) -> CostsByClock:
    """What the reduction adds to the last backward of the stage, with the sums of norms after it; energy of it all."""
    gpu, software = config.gpu, _summing(config)
    parts = reduced_parameters(config.model, config.parallelism, config.training)
    whole_sum = software.sums_whole and config.parallelism.shards_states
    if whole_sum or software.reduction is Reduction.WHOLE:
        experts = stage_expert_parameters(config, stage)
        whole = _reductions(config, stage, [stage_parameters(config, stage) - experts])
        whole += expert_reduction_collectives(config.parallelism, gpu, software, stage, experts)
        return _collectives(config, whole, clocks_mhz) + _norm_sums(config, stage, clocks_mhz)
    buckets = _buckets(config, graph, stage, backward_s, shared)
    placed = {scope: _reductions(config, stage, parts[scope]) for scope in dict.fromkeys(scope for scope, _ in buckets)}
    for scope, experts in trained_expert_parameters(config.model, config.parallelism, config.training).items():
        if scope in placed:
            placed[scope] += expert_reduction_collectives(config.parallelism, gpu, software, stage, experts)
    times_s = {
        scope: _times_s(config, collectives, clocks_mhz) + _messages_s(config, collectives)
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
    held_j = held_power_w(gpu, _sm_count(config), clocks_mhz) * held_s
    added_s += (1 - software.hidden_reduction) * (held_s - added_s)
    added = np.array([added_s, moving_j + held_j + idle_power_w(gpu, clocks_mhz) * added_s])
    return added + _norm_sums(config, stage, clocks_mhz)


def _summing(config: UpdateSubject) -> Software:
    """Return the software with the bytes of a gradient of this training."""
    summed_in = config.software.gradient_bytes
    gradient_bytes = config.training.gradient_bytes(summed_in)
    return config.software if gradient_bytes == summed_in else replace(config.software, gradient_bytes=gradient_bytes)


def _reductions(config: UpdateSubject, stage: int, parameters: Sequence[int]) -> list[Placed]:
    """Return the collectives that sum the gradients of parameters that are reduced one after the other."""
    return [
        collective
        for number in parameters
        for collective in reduction_collectives(config.parallelism, config.gpu, _summing(config), stage, number)
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
    key = scope, placed[scope][0], _sm_count(config), clocks_mhz.tobytes()
    if key not in shared.slowdowns:
        shared.slowdowns[key] = _slowdowns_beside(config, graph, scope, placed[scope][0], clocks_mhz)
    return shared.slowdowns[key]


def _slowdowns_beside(
    config: UpdateSubject, graph: BlockGraph, scope: Scope, placed: Placed, clocks_mhz: Array
) -> list[Slowdown]:
    backward = graph.backward if scope is Scope.BLOCK else graph.dense_backward
    operators = [operator for segment in backward for operator in segment.operators]
    collective, placement = placed
    sm_counts = np.full_like(clocks_mhz, _sm_count(config))
    alone_s = placed_collective_s(config.gpu, collective, placement, clocks_mhz, sm_counts)
    factors = slowdowns(config.gpu, operators, (collective, alone_s), clocks_mhz, _sm_count(config))
    return [Slowdown(float(backward), float(reduction)) for backward, reduction in zip(*factors, strict=True)]


def _exchange(config: UpdateSubject, clocks_mhz: Array) -> CostsByClock:
    parameters = embedding_parameters(config.model, config.parallelism)
    shard = _shard(config, parameters)
    exchange = exchange_collectives(config.parallelism, config.gpu, _summing(config), shard)
    return _collectives(config, exchange, clocks_mhz)


def _operators(gpu: Gpu, operators: Sequence[Operator], clocks_mhz: Array) -> CostsByClock:
    """What operators take one after the other, under the power limit."""
    ran = run_program(gpu, Program(name="update", steps=(Step(operators=tuple(operators)),), blocks=None), clocks_mhz)
    return np.array([ran.time_s, ran.energy_j])


def _collectives(config: UpdateSubject, placed: Sequence[Placed], clocks_mhz: Array) -> CostsByClock:
    """CostsByClock of collectives one after the other, with nothing beside them."""
    total = np.zeros((2, len(clocks_mhz)))
    for collective in placed:
        time_s = _times_s(config, [collective], clocks_mhz)
        held_j = held_power_w(config.gpu, _sm_count(config), clocks_mhz) * time_s
        busy_j = collective_switching(config.gpu, collective[0]).busy_j(config.gpu, clocks_mhz, time_s)
        total += np.array([time_s, busy_j + held_j])
    return total


def _sm_count(config: UpdateSubject) -> int:
    """Return the SMs of what an update exchanges: with shared-out gradients their sum over copies, and little else."""
    copies_sms = config.parallelism.fsdp.copies_sms
    return config.default_collective_sm_count if copies_sms is None else copies_sms


def _times_s(config: UpdateSubject, placed: Sequence[Placed], clocks_mhz: Array) -> Array:
    sm_counts, total_s = np.full_like(clocks_mhz, _sm_count(config)), np.zeros_like(clocks_mhz)
    for collective, placement in placed:
        total_s += placed_collective_s(config.gpu, collective, placement, clocks_mhz, sm_counts)
    return total_s


def _messages_s(config: UpdateSubject, placed: Sequence[Placed]) -> float:
    """Time of the further messages of a block's collectives that share out an optimizer."""
    if not config.parallelism.shards_states or not config.software.block_messages:
        return 0.0
    return config.software.block_messages * sum(message_latency_s(config.gpu, *placement) for placement in placed)


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
