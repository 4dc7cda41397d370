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
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.energy import idle_power_w
from kareus.gpu_model.thermal import sustained_j
from kareus.gpu_model.waiting import waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.number_formats import BF16_BYTES, FORMATS, FP32_BYTES, Precision
from kareus.graph.records import (
    COMPLETING,
    BlockGraph,
    Direction,
    Operator,
    OperatorKind,
    Scope,
    instruction_directions,
)
from kareus.model.parameters import embedding_parameters, scope_parameters, trained_parameters
from kareus.model.training_options import MasterWeights, TrainingOptions
from kareus.profile.programs import laid_out_shapes
from kareus.software.kernels import weight_cast
from kareus.update.collectives import (
    Placed,
    exchange_collectives,
    expert_gather_collectives,
    gather_collectives,
    norm_collectives,
    update_directions,
)
from kareus.update.reduction import ALONE, added_time_s, even_buckets, stage_buckets, window_s
from kareus.update.reduction_costs import SharedCosts, reduction_cost
from kareus.update.work import (
    CostsByClock,
    UpdateSubject,
    collectives_cost,
    messages_s,
    norm_sums,
    operators_cost,
    shard_of,
    stage_expert_parameters,
    stage_parameters,
    stage_parts,
    summing_software,
)


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
                    config, reduction_cost(config, graph, stage, passes.backward_s, clocks_mhz, shared)
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
    shard = shard_of(config, parameters - experts) + _expert_shard(config, experts)
    options = config.training
    gradient = options.gradient_bytes(FP32_BYTES)
    on_host = round(options.offload_optimizer * shard)
    norm = [_memory_bound("norm", read=gradient * shard, written=0)]
    step = [
        _memory_bound("clip", read=gradient * shard, written=gradient * shard),
        *_adamw(options, gradient, shard - on_host),
        _memory_bound("zero", read=0, written=gradient * (shard if parallelism.shards_gradients else parameters)),
    ]
    sums = collectives_cost(config, norm_collectives(parallelism, gpu, stage), clocks_mhz)
    if Direction.GRADIENT_REDUCTION not in update_directions(config, stage):
        sums += norm_sums(config, stage, clocks_mhz)
    gathers = gather_collectives(parallelism, gpu, config.software, stage, parameters - experts)
    gathers += expert_gather_collectives(parallelism, gpu, stage, experts)
    if options.cast_weights:
        gathers = _cast(gathers, config.precision)
    casts = FORMATS[config.precision].is_cast and not options.trains_adapters  # frozen weights stay cast
    gathering = _gathering(config, stage, gathers, passes, clocks_mhz) if gathers else None
    return {
        "gradient norm": _sustained(config, operators_cost(gpu, norm, clocks_mhz) + sums),
        "optimizer step": _sustained(config, operators_cost(gpu, step, clocks_mhz)),
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
    whole = collectives_cost(config, gathers, clocks_mhz)
    pieces = config.parallelism.split[stage] + (stage == 0) + (stage == config.parallelism.head_stage)
    waiting_s = pieces * messages_s(config, gathers)
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
    return operators_cost(config.gpu, [weight_cast(values, config.precision)], clocks_mhz)


def _expert_shard(config: UpdateSubject, parameters: int) -> int:
    """Return the part of experts' parameters that one GPU optimizes: shared out as the same experts are."""
    return -(-parameters // config.parallelism.expert_sharing) if config.parallelism.shards_states else parameters


def _exchange(config: UpdateSubject, clocks_mhz: Array) -> CostsByClock:
    parameters = embedding_parameters(config.model, config.parallelism)
    shard = shard_of(config, parameters)
    exchange = exchange_collectives(config.parallelism, config.gpu, summing_software(config), shard)
    return collectives_cost(config, exchange, clocks_mhz)


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
