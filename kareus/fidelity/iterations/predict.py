"""Predicting an iteration of any software: passes of microbatches on the GPU model, the host, the pipeline, the update.

The host launches ahead of the GPU, so that what takes longer decides: over a pass where the host waits for messages
between stages, else over all passes of a stage. An instruction is predicted once for each shape of a stage; many
measured iterations share them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kareus.arrays import Array
from kareus.errors import RefusedWorkloadError
from kareus.fidelity.iterations import number_formats, softmaxes
from kareus.fidelity.iterations.overlaps import ATTENDING, overlapped, placed
from kareus.fidelity.iterations.workloads import IterationSubject
from kareus.gpu_model.energy import Switching, collective_switching, idle_power_w
from kareus.gpu_model.gpu import MOST_W, Gpu
from kareus.gpu_model.laws import hbm_bytes_per_s
from kareus.gpu_model.model import KnownSteps, Tally, run_tally
from kareus.gpu_model.network import placed_collective_s
from kareus.gpu_model.power_limit import LEAST_CLOCK_MHZ
from kareus.graph.program import Step
from kareus.graph.records import TRACED, UPDATING, Batch, BlockGraph, Direction, OperatorKind, PlacedCollective, Scope
from kareus.model.parameters import embedding_parameters, scope_parameters
from kareus.model.precision import FP32_BYTES
from kareus.partition.extract import extract
from kareus.pipeline.instructions import Instruction, pipeline_instructions
from kareus.pipeline.solver.dag import Dag, build_dag, makespan
from kareus.pipeline.transfers import transfers_s
from kareus.profile.programs import Execution, StageShape, chunk_shapes, instruction_program, weights_of
from kareus.update.collectives import Placed, exchange_collectives, reduction_collectives
from kareus.update.costs import stage_parameters, step_costs
from kareus.update.directions import update_directions
from kareus.update.reduction import Slowdown, added_time_s
from kareus.workload.config import Workload
from kareus.workload.model_flops import mfu
from kareus.workload.slices import cut
from kareus.workload.software import Reduction, Software

HOPPER_SM_COUNT = 132
"""SMs of the smallest of the GPUs since Hopper; the A100 has 108."""
OLD_ATTENTION = 1.6
"""Time of FlashAttention 2 over that of FlashAttention 3 on an H100, forward and backward (Shah et al. 2024: 1.5 to 2.0
times forward, 1.5 to 1.75 times backward)."""
HOST_NORM = 3
"""Exponent that joins times of host and GPU: lower than of compute and memory, which overlap within a kernel."""
CLOCK_GRID = np.linspace(0.4, 1.0, 13)
"""Clocks at which passes are evaluated, as shares of the maximum, ascending; `clock_grid` goes on to the lowest."""
LOW_CLOCKS = 6
"""Clocks below these, at about the same distances."""
AMBIENT_C = 30.0
"""Air before a GPU in a data centre (ASHRAE A2 allows 10 to 35)."""
VARIATION = 0.009
"""Standard deviation of the time of GPUs of one kind that the power limit holds back.

Power of a job differs by 6.7 % between the GPUs of a node, so with a standard deviation of 2.3 %; four tenths of that
are time, since power goes with about the 2.5th power of the clock.
"""
ROUNDING = 1e-9
"""Largest share of an iteration that sums of its parts differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationPrediction:
    """Predicted time of an iteration and its parts, means over the stages, which add up to it."""

    time_s: float
    forward_s: float
    """Operators of forwards."""
    backward_s: float
    """Operators of backwards, with what they recompute."""
    exposed_communication_s: float
    """What collectives add to operators, gradient reduction and gathers of weights included."""
    host_s: float
    """What the host adds where it is slower than the GPU."""
    bubbles_s: float
    """What GPUs wait for other stages, and for the slowest GPU."""
    update_s: float
    """Norm of the gradient and optimizer step."""
    energy_j: float
    """Energy of all GPUs."""
    mfu: float
    """Model FLOPs utilisation."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of a pass of a microbatch through a stage, or through a chunk of it, on one GPU."""

    gpu_s: float
    exposed_s: float
    """Time of it that collectives add."""
    energy_j: float
    launches: int
    """Kernels that the host launches for it, collectives among them."""
    collectives: int
    """Collectives among them."""
    streaming_s: float
    """Time in which operators that HBM bounds move their bytes."""
    streaming_j: float
    """Energy of that."""
    attention_s: float
    """Time of fused attention."""


class Predictor:
    """Predicts iterations; keeps what they share."""

    def __init__(self) -> None:
        self._graphs: dict[Any, BlockGraph] = {}
        self._known: dict[str, KnownSteps] = {}
        self._passes: dict[Any, PassCost] = {}
        self._pipelines: dict[Any, tuple[Instruction, ...]] = {}
        self._dags: dict[Any, Dag] = {}

    def predict(self, subject: IterationSubject) -> IterationPrediction:
        """Predict an iteration at the maximum clock, or what the power limit leaves of it.

        Raises:
            RefusedWorkloadError: the model does not divide over its GPUs, or they draw more than their limit waiting.
        """
        workload = replace(subject.workload, gpu=charged(subject.workload.gpu))
        software, parallelism = subject.software, workload.parallelism
        graph = self._graph(workload, software, in_fp8=subject.in_fp8)
        shapes = chunk_shapes(parallelism.split, workload.chunks)
        numbers = repr(workload.gpu)  # GPUs of one name may differ in any number
        passes = {
            (place, direction): self._pass(workload, numbers, software, graph, shape, direction)
            for place, shape in shapes.items()
            for direction in TRACED
        }
        slowed = {stage: host_slowdown(workload, software, passes, stage) for stage in range(parallelism.pp)}
        times_s = {
            (place, direction): cost.gpu_s * slowed[place[0]][direction] for (place, direction), cost in passes.items()
        }
        updates = [_update(workload, software, stage, times_s) for stage in range(parallelism.pp)]
        slowest = slowest_of(parallelism.gpus)
        time_s = self._makespan(workload, {key: time_s * slowest for key, time_s in times_s.items()}, updates)
        return _prediction(workload, passes, times_s, updates, time_s)

    def _graph(self, workload: Workload, software: Software, *, in_fp8: bool) -> BlockGraph:
        """Operator graph of a block; whatever else the layout is, the same GPU-local sizes give the same graph."""
        model, parallelism = workload.model, workload.parallelism
        alike = (
            replace(model, num_layers=1, layers_per_stage={}, name="any"),
            replace(parallelism, dp=1, pp=1, layers_per_stage=None),
        )
        traced = (repr(alike), workload.microbatch_size, workload.sequence_length, software.fused_attention)
        if traced not in self._graphs:
            graphs = extract(*alike, workload.microbatch_size, workload.sequence_length, software.attention_kernel)
            self._graphs[traced] = graphs[Batch.MICROBATCH]
        if not software.fused_attention:
            group = workload.microbatch_size * model.num_attention_heads // parallelism.tp
            traced = self._with_unfused_softmax(traced, software, is_one_kernel=group % software.softmax_multiple == 0)
        if not in_fp8:
            return self._graphs[traced]
        if (traced, "fp8") not in self._graphs:
            self._graphs[traced, "fp8"] = number_formats.in_fp8(self._graphs[traced])
        return self._graphs[traced, "fp8"]

    def _with_unfused_softmax(self, traced: Any, software: Software, *, is_one_kernel: bool) -> Any:
        """Key of the same graph with the kernels that the software has between scores and mixing."""
        key = (traced, software.attention_dropout, is_one_kernel)
        if key not in self._graphs:
            graph = self._graphs[traced]
            if not is_one_kernel:
                graph = softmaxes.in_single_kernels(graph)
            self._graphs[key] = softmaxes.with_dropout(graph) if software.attention_dropout else graph
        return key

    def _pass(
        self,
        workload: Workload,
        numbers: str,  # of the GPU
        software: Software,
        graph: BlockGraph,
        shape: StageShape,
        direction: Direction,
    ) -> PassCost:
        parallelism = workload.parallelism
        replicas = (parallelism.dp, parallelism.pp, parallelism.sharding) if parallelism.shards_gradients else None
        on_gpu = (numbers, workload.default_collective_sm_count)
        by_software = (software.tensor_overlap, software.context_overlap, software.gradient_bytes)
        key = (id(graph), shape, direction, workload.recomputation, on_gpu, by_software, replicas)
        if key not in self._passes:
            steps = _steps(workload, software, graph, shape, direction)
            known = self._known.setdefault(numbers, {})
            self._passes[key] = _pass_cost(workload.gpu, steps, known)
        return of_software(self._passes[key], software, workload.gpu)

    def _makespan(
        self,
        workload: Workload,
        times_s: Mapping[tuple[tuple[int, int], Direction], float],
        updates: Sequence[Mapping[Direction, "UpdateCost"]],
    ) -> float:
        pp, microbatches, chunks = workload.parallelism.pp, workload.num_microbatches, workload.chunks
        schedule, directions = workload.pipeline.schedule, tuple(tuple(update) for update in updates)
        key = (schedule, pp, microbatches, chunks, directions)
        if key not in self._pipelines:
            self._pipelines[key] = pipeline_instructions(schedule, pp, microbatches, chunks=chunks, updates=directions)
        instructions = self._pipelines[key]
        transfers = transfers_s(cut(workload, "pipeline"))
        if (key, transfers) not in self._dags:
            self._dags[key, transfers] = build_dag(instructions, transfers)
        durations = [
            updates[i.key.stage][i.key.direction].time_s
            if i.key.direction in UPDATING
            else times_s[(i.key.stage, i.key.chunk), i.key.direction]
            for i in instructions
        ]
        return makespan(self._dags[key, transfers], durations)


def charged(gpu: Gpu) -> Gpu:
    """Return a GPU that has been training for minutes, without what is charged apart.

    Overheads of whole instructions and the host are charged apart. A warm chip leaks more, which counts where the power
    limit holds it back: `static_power_w` is that at the temperature to which the limit heats the chip.
    """
    c = gpu.coefficients
    warm_c = AMBIENT_C + c.thermal_resistance_c_per_w * gpu.power_limit_w
    leaked_w = c.leakage_w_per_c * max(warm_c - c.reference_temperature_c, 0.0)
    none = replace(c, isolation_overhead=0.0, instruction_overhead_s=0.0, host_launch_s=0.0)
    return replace(gpu, coefficients=none, static_power_w=gpu.static_power_w + leaked_w)


def slowest_of(gpus: int) -> float:
    """Return the time of the slowest of as many GPUs, which all wait for, over that of a mean one.

    The largest of n normal numbers is about sqrt(2 ln n) standard deviations above their mean, less a slowly varying
    correction (Cramer 1946, section 28.6).
    """
    if gpus == 1:
        return 1.0
    most = math.sqrt(2 * math.log(gpus))
    return 1 + VARIATION * max(most - (math.log(math.log(gpus)) + math.log(4 * math.pi)) / (2 * most), 0.5)


def of_software(cost: PassCost, software: Software, gpu: Gpu) -> PassCost:
    """Return the cost of a pass with the kernels of a software: slower attention, less fused streaming operators.

    Raises:
        RefusedWorkloadError: as `_held`.
    """
    attention = software.attention_slowdown
    if gpu.sm_count >= HOPPER_SM_COUNT and not software.hopper_attention:
        attention *= OLD_ATTENTION
    idle_w = float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz))))
    more, attending_s = software.traffic - 1, (attention - 1) * cost.attention_s
    own = replace(
        cost,
        gpu_s=cost.gpu_s + more * cost.streaming_s + attending_s,
        energy_j=cost.energy_j + more * cost.streaming_j + idle_w * attending_s,
    )
    return _held(own, gpu)


def _held(cost: PassCost, gpu: Gpu) -> PassCost:
    """Return the cost of a pass whose mean power is within the limit, also where no clock holds it.

    The GPU then waits at its lowest clock for as long as it takes, so that mean power is the limit.

    Raises:
        RefusedWorkloadError: the limit is less than what the GPU draws waiting.
    """
    limit_w = gpu.throttling_power_w
    if cost.energy_j <= limit_w * cost.gpu_s:
        return cost
    waiting_w = float(idle_power_w(gpu, gpu.maximum_clock_mhz * clock_grid(gpu)[:1])[0])
    if limit_w <= waiting_w:
        raise RefusedWorkloadError(
            f"gpu.power_limit_w={gpu.power_limit_w:g}: {gpu.name} draws {waiting_w:.0f} W waiting at its lowest clock, "
            "before it computes; give more."
        )
    waiting_s = (cost.energy_j - limit_w * cost.gpu_s) / (limit_w - waiting_w)
    return replace(cost, gpu_s=cost.gpu_s + waiting_s, energy_j=cost.energy_j + waiting_w * waiting_s)


def host_slowdown(
    workload: Workload,
    software: Software,
    passes: Mapping[tuple[tuple[int, int], Direction], PassCost],
    stage: int,
) -> dict[Direction, float]:
    """Return by how much the host makes passes of a stage longer than they are on the GPU, by direction."""
    own = {d: [cost for (place, its), cost in passes.items() if place[0] == stage and its is d] for d in TRACED}
    gpu_s = {d: sum(cost.gpu_s for cost in costs) for d, costs in own.items()}
    host_s = {d: sum(host_time_s(software, cost) for cost in costs) for d, costs in own.items()}
    if software.synchronises_stages and workload.parallelism.pp > 1:
        return {d: _joined_s(gpu_s[d], host_s[d]) / gpu_s[d] for d in TRACED}
    whole_s = sum(gpu_s.values())
    return dict.fromkeys(TRACED, _joined_s(whole_s, sum(host_s.values())) / whole_s)


def _joined_s(gpu_s: float, host_s: float) -> float:
    """Time of a stretch of kernels; where both take about the same, parts of it wait for each."""
    longest_s = max(gpu_s, host_s)
    shares = (gpu_s / longest_s) ** HOST_NORM + (host_s / longest_s) ** HOST_NORM
    return longest_s * float(shares ** (1 / HOST_NORM))


def host_time_s(software: Software, cost: PassCost) -> float:
    """Return the time in which the host launches a pass."""
    return cost.launches * software.host_launch_s + cost.collectives * software.host_collective_s


def _steps(
    workload: Workload, software: Software, graph: BlockGraph, shape: StageShape, direction: Direction
) -> list[Step]:
    """Steps of a pass as the software runs them."""
    parallelism, sm_count = workload.parallelism, workload.default_collective_sm_count
    sharing = replace(parallelism, dp=parallelism.dp * parallelism.cp, cp=1)  # ranks of context parallelism share, too
    weights = weights_of(replace(workload, parallelism=sharing), 0, shape, sm_count)
    if weights is not None:
        reduce, outer = (_scaled(whole, software) for whole in (weights.reduce, weights.outer_reduce))
        weights = replace(weights, reduce=reduce or weights.reduce, outer_reduce=outer)
    program = instruction_program(
        {Batch.MICROBATCH: graph},
        shape,
        direction,
        Execution.SEQUENTIAL,
        recomputation=workload.recomputation,
        default_sm_count=sm_count,
        weights=weights,
    )
    nodes = -(-parallelism.tp * parallelism.cp // workload.gpu.gpus_per_node)
    return placed(overlapped(program.steps, software), nodes)


def _scaled(whole: PlacedCollective | None, software: Software) -> PlacedCollective | None:
    """Return a reduction with as many bytes for each gradient as the software sums."""
    if whole is None:
        return None
    return replace(whole, message_bytes=whole.message_bytes * software.gradient_bytes // FP32_BYTES)


def _pass_cost(gpu: Gpu, steps: Sequence[Step], known: KnownSteps) -> PassCost:
    """Cost of a pass, held to the power limit as a whole.

    The limit acts on power over tens of milliseconds (`limiter_s`), in which many kernels run: products may draw more
    than the limit, since what HBM bounds draws less.
    """
    grid = clock_grid(gpu)
    clocks = gpu.maximum_clock_mhz * grid
    free = replace(gpu, power_limit_w=float(MOST_W))

    def cost(parts: Counter[Step]) -> Array:
        """Seconds and joules at each clock, shape (2, clocks)."""
        ran = run_tally(free, Tally(Counter(), parts, whole_instruction=False), clocks, known)
        return np.array([ran.time_s, ran.energy_j])

    whole = cost(Counter(steps))
    alone = cost(Counter(Step(operators=step.operators) for step in steps if step.operators))
    attention = cost(Counter(Step(operators=(o,)) for step in steps for o in step.operators if o.kind in ATTENDING))
    limited = _limited_clock(grid, whole[1] / whole[0], gpu.throttling_power_w)
    gpu_s, alone_s, attention_s, energy_j = (
        float(np.interp(limited, grid, row)) for row in (whole[0], alone[0], attention[0], whole[1])
    )
    collectives = sum(step.collective is not None for step in steps)
    streaming = [o for step in steps for o in step.operators if o.kind is OperatorKind.MEMORY]
    streamed_bytes = sum(o.bytes_read + o.bytes_written for o in streaming)
    streaming_s = streamed_bytes / float(hbm_bytes_per_s(gpu, np.array(float(gpu.sm_count))))
    c, clock = gpu.coefficients, np.array(limited * gpu.maximum_clock_mhz)
    moved = Switching(streamed_bytes * c.hbm_core_j_per_byte, streamed_bytes * c.hbm_j_per_byte)
    return PassCost(
        attention_s=attention_s,
        gpu_s=gpu_s,
        exposed_s=gpu_s - alone_s,
        energy_j=energy_j,
        launches=sum(o.launches for step in steps for o in step.operators) + collectives,
        collectives=collectives,
        streaming_s=streaming_s,
        streaming_j=float(moved.at_j(gpu, clock) + idle_power_w(gpu, clock) * streaming_s),
    )


def clock_grid(gpu: Gpu) -> Array:
    """Return the clocks at which passes are evaluated, from a GPU's lowest, as shares of the maximum, ascending."""
    lowest = min(LEAST_CLOCK_MHZ / gpu.maximum_clock_mhz, CLOCK_GRID[0])
    low = np.linspace(lowest, CLOCK_GRID[0], LOW_CLOCKS, endpoint=False) if lowest < CLOCK_GRID[0] else CLOCK_GRID[:0]
    return np.concatenate([low, CLOCK_GRID])


def _limited_clock(grid: Array, power_w: Array, limit_w: float) -> float:
    """Return the highest clock, as a share of the maximum, at which power is within a limit; the lowest if none is."""
    if power_w[-1] <= limit_w:
        return float(grid[-1])
    return float(np.interp(limit_w, power_w, grid))


@dataclass(frozen=True, slots=True)
class UpdateCost:
    """Cost of one instruction of the update."""

    time_s: float
    energy_j: float
    communication_s: float
    """Time of it that collectives take."""


def _update(
    workload: Workload,
    software: Software,
    stage: int,
    times_s: Mapping[tuple[tuple[int, int], Direction], float],
) -> dict[Direction, UpdateCost]:
    """Return the instructions of a stage's update."""
    clocks = np.array([float(workload.gpu.maximum_clock_mhz)])
    backward_s = [times_s[(stage, chunk), Direction.BACKWARD] for chunk in range(workload.chunks)]
    costs: dict[Direction, UpdateCost] = {}
    for direction in update_directions(workload, stage):
        if direction is Direction.UPDATE:
            parts = step_costs(workload, stage, clocks)
            gathering = parts.pop("weight gathering", np.zeros((2, 1)))
            if software.gather_beside_forward:
                forward_s = sum(times_s[(stage, chunk), Direction.FORWARD] for chunk in range(workload.chunks))
                hidden_s = gathering[0] * (1 - _exposed_share(workload, float(gathering[0, 0]), forward_s))
                # The forward beside it has the idle power of this time; moving weights costs the same.
                gathering = gathering - [hidden_s, idle_power_w(workload.gpu, clocks) * hidden_s]
            time_s, energy_j = np.sum([*parts.values(), gathering], axis=0)[:, 0]
            costs[direction] = UpdateCost(float(time_s), float(energy_j), float(gathering[0, 0]))
        elif direction is Direction.GRADIENT_REDUCTION and software.reduction is Reduction.BUCKETS:
            costs[direction] = _bucketed(workload, software, stage, backward_s)
        else:
            costs[direction] = _exchanged(workload, software, stage, direction)
    return costs


def _bucketed(workload: Workload, software: Software, stage: int, backward_s: Sequence[float]) -> UpdateCost:
    """Cost of summing gradients block by block beside the last backwards of the stage's chunks.

    Blocks of a chunk complete their gradients at equal distances. Between the last backwards of two chunks as many
    backwards run as there are stages. That both are slower beside each other is left out: links are mostly idle.
    """
    parallelism, gpu = workload.parallelism, workload.gpu
    shapes = chunk_shapes(parallelism.split, workload.chunks)
    parts = scope_parameters(workload.model, parallelism)
    costs = {scope: _summed(workload, software, stage, parts[scope]) for scope in Scope}
    began_s, ready_s, buckets = 0.0, list[float](), list[Scope]()
    for chunk in reversed(range(workload.chunks)):
        shape, own_s = shapes[stage, chunk], backward_s[chunk]
        layers = max(shape.layers, 1)
        ready_s += [began_s + own_s * (n + 1) / layers for n in range(shape.layers)]
        buckets += [Scope.BLOCK] * shape.layers
        ends = [Scope.HEAD] * shape.last + [Scope.EMBEDDING] * shape.first
        ready_s += [began_s + own_s] * len(ends)
        buckets += ends
        began_s += own_s if chunk == 0 else parallelism.pp * own_s
    added_s = added_time_s(began_s, ready_s, [costs[scope].time_s for scope in buckets], Slowdown(1.0, 1.0))
    idle_w = float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz))))
    moving_j = sum(costs[scope].energy_j - idle_w * costs[scope].time_s for scope in buckets)
    return UpdateCost(added_s, moving_j + idle_w * added_s, added_s)


def _exposed_share(workload: Workload, gathering_s: float, forward_s: float) -> float:
    """Share of a gather of weights that a forward does not hide: the first bucket, and what exceeds the forward."""
    first = workload.chunks / max(workload.parallelism.split[0], 1)
    if not gathering_s:
        return 0.0
    return min(1.0, max(first, 1 - forward_s / gathering_s))


def _exchanged(workload: Workload, software: Software, stage: int, direction: Direction) -> UpdateCost:
    """Cost of summing gradients in one piece, with nothing beside it."""
    if direction is Direction.GRADIENT_REDUCTION:
        return _summed(workload, software, stage, stage_parameters(workload, stage))
    embedding = embedding_parameters(workload.model, workload.parallelism)
    return _sum(workload, software, exchange_collectives(workload.parallelism, workload.gpu, embedding))


def _summed(workload: Workload, software: Software, stage: int, parameters: int) -> UpdateCost:
    """Cost of summing the gradients of as many parameters over the replicas of a stage."""
    return _sum(workload, software, reduction_collectives(workload.parallelism, workload.gpu, stage, parameters))


def _sum(workload: Workload, software: Software, found: Sequence[Placed]) -> UpdateCost:
    gpu = workload.gpu
    clock = np.array([float(gpu.maximum_clock_mhz)])
    sm_count = np.full_like(clock, workload.default_collective_sm_count)
    time_s = energy_j = 0.0
    for whole, placement in found:
        one = replace(whole, message_bytes=whole.message_bytes * software.gradient_bytes // FP32_BYTES)
        own_s = float(placed_collective_s(gpu, one, placement, clock, sm_count)[0])
        time_s += own_s
        energy_j += float(collective_switching(gpu, one).at_j(gpu, clock)[0] + idle_power_w(gpu, clock)[0] * own_s)
    return UpdateCost(time_s, energy_j, time_s)


def _prediction(
    workload: Workload,
    passes: Mapping[tuple[tuple[int, int], Direction], PassCost],
    times_s: Mapping[tuple[tuple[int, int], Direction], float],
    updates: Sequence[Mapping[Direction, UpdateCost]],
    time_s: float,
) -> IterationPrediction:
    """Add up the parts, each a mean over stages."""
    repeated = workload.num_microbatches / workload.parallelism.pp
    computing_s = {
        d: repeated * sum(c.gpu_s - c.exposed_s for (_, its), c in passes.items() if its is d) for d in TRACED
    }
    exposed_s = repeated * sum(c.exposed_s for c in passes.values())
    host_s = repeated * sum(times_s[key] - c.gpu_s for key, c in passes.items())
    steps = [cost for update in updates for cost in update.values()]
    communication_s = sum(cost.communication_s for cost in steps) / workload.parallelism.pp
    update_s = sum(cost.time_s for cost in steps) / workload.parallelism.pp - communication_s
    busy_s = sum(computing_s.values()) + exposed_s + host_s + communication_s + update_s
    busy_j = (
        repeated * sum(c.energy_j for c in passes.values()) + sum(c.energy_j for c in steps) / workload.parallelism.pp
    )
    gpu = workload.gpu
    idle_w = float(idle_power_w(gpu, np.array(float(gpu.maximum_clock_mhz))))
    bubbles_s = time_s - busy_s
    if abs(bubbles_s) <= ROUNDING * time_s:  # a pipeline of one stage has none
        bubbles_s = 0.0
    waiting_j = min(idle_w, gpu.throttling_power_w) * host_s + gpu.blocking_power_w * bubbles_s
    return IterationPrediction(
        time_s=time_s,
        forward_s=computing_s[Direction.FORWARD],
        backward_s=computing_s[Direction.BACKWARD],
        exposed_communication_s=exposed_s + communication_s,
        host_s=host_s,
        bubbles_s=bubbles_s,
        update_s=update_s,
        energy_j=(busy_j + waiting_j) * workload.parallelism.gpus,
        mfu=mfu(workload, time_s),
    )
