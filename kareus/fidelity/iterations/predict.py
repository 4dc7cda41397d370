"""Predicting an iteration of any software: passes of microbatches on the GPU model, the host, the pipeline, the update.

The host launches ahead of the GPU, so that what takes longer decides: over a pass where the host waits for messages
between stages, else over all passes of a stage. An instruction is predicted once for each shape of a stage; many
measured iterations share them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kareus.fidelity.iterations import number_formats
from kareus.fidelity.iterations.overlaps import overlapped, placed
from kareus.fidelity.iterations.workloads import IterationSubject
from kareus.gpu_model.energy import collective_switching, idle_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import KnownSteps, Tally, run_tally
from kareus.gpu_model.network import placed_collective_s
from kareus.gpu_model.norms import longer_s
from kareus.graph.program import Step
from kareus.graph.records import TRACED, UPDATING, Batch, BlockGraph, Direction, OperatorKind, PlacedCollective, Segment
from kareus.model.precision import FP32_BYTES
from kareus.partition.extract import extract
from kareus.pipeline.instructions import Instruction, pipeline_instructions
from kareus.pipeline.solver.dag import build_dag, makespan
from kareus.pipeline.transfers import transfers_s
from kareus.profile.programs import Execution, StageShape, chunk_shapes, instruction_program, weights_of
from kareus.update.collectives import exchange_collectives, reduction_collectives
from kareus.update.costs import stage_parameters, step_costs, update_costs
from kareus.update.directions import update_directions
from kareus.workload.config import Workload
from kareus.workload.model_flops import mfu
from kareus.workload.slices import cut
from kareus.workload.software import Reduction, Software

AMBIENT_C = 30.0
"""Air before a GPU in a data centre (ASHRAE A2 allows 10 to 35)."""
VARIATION = 0.009
"""Standard deviation of the time of GPUs of one kind that the power limit holds back.

Power of a job differs by 6.7 % between the GPUs of a node, so with a standard deviation of 2.3 %; four tenths of that
are time, since power goes with about the 2.5th power of the clock.
"""


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
    """Kernels that the host launches for it."""


class Predictor:
    """Predicts iterations; keeps what they share."""

    def __init__(self) -> None:
        self._graphs: dict[Any, BlockGraph] = {}
        self._known: dict[Any, KnownSteps] = {}
        self._passes: dict[Any, PassCost] = {}
        self._pipelines: dict[Any, tuple[Instruction, ...]] = {}

    def predict(self, subject: IterationSubject) -> IterationPrediction:
        """Predict an iteration at the maximum clock, or what the power limit leaves of it.

        Raises:
            RefusedWorkloadError: the model does not divide over its GPUs.
        """
        workload = replace(subject.workload, gpu=charged(subject.workload.gpu))
        software, parallelism = subject.software, workload.parallelism
        graph = self._graph(workload, software, in_fp8=subject.in_fp8)
        shapes = chunk_shapes(parallelism.split, workload.chunks)
        passes = {
            (place, direction): self._pass(workload, software, graph, shape, direction)
            for place, shape in shapes.items()
            for direction in TRACED
        }
        slowed = {stage: host_slowdown(workload, software, passes, stage) for stage in range(parallelism.pp)}
        times_s = {
            (place, direction): cost.gpu_s * slowed[place[0]][direction] for (place, direction), cost in passes.items()
        }
        updates = [_update(workload, software, graph, stage, times_s) for stage in range(parallelism.pp)]
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
            graphs = extract(*alike, workload.microbatch_size, workload.sequence_length)
            self._graphs[traced] = graphs[Batch.MICROBATCH]
        key = (traced, software.traffic, in_fp8)
        if key not in self._graphs:
            graph = widened(self._graphs[traced], software.traffic)
            self._graphs[key] = number_formats.in_fp8(graph) if in_fp8 else graph
        return self._graphs[key]

    def _pass(
        self, workload: Workload, software: Software, graph: BlockGraph, shape: StageShape, direction: Direction
    ) -> PassCost:
        parallelism = workload.parallelism
        replicas = (parallelism.dp, parallelism.pp, parallelism.sharding) if parallelism.shards_gradients else None
        key = (id(graph), shape, direction, workload.recomputation, workload.gpu.name, software, replicas)
        if key not in self._passes:
            steps = _steps(workload, software, graph, shape, direction)
            known = self._known.setdefault(workload.gpu.name, {})
            self._passes[key] = _pass_cost(workload.gpu, steps, known)
        return self._passes[key]

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
        dag = build_dag(instructions, transfers_s(cut(workload, "pipeline")))
        durations = [
            updates[i.key.stage][i.key.direction].time_s
            if i.key.direction in UPDATING
            else times_s[(i.key.stage, i.key.chunk), i.key.direction]
            for i in instructions
        ]
        return makespan(dag, durations)


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


def widened(graph: BlockGraph, traffic: float) -> BlockGraph:
    """Return a graph whose operators that HBM bounds move `traffic` times as many bytes."""
    return BlockGraph(
        **{f.name: tuple(_widened(segment, traffic) for segment in getattr(graph, f.name)) for f in fields(graph)}
    )


def _widened(segment: Segment, traffic: float) -> Segment:
    operators = tuple(
        replace(o, bytes_read=int(o.bytes_read * traffic), bytes_written=int(o.bytes_written * traffic))
        if o.kind is OperatorKind.MEMORY
        else o
        for o in segment.operators
    )
    return replace(segment, operators=operators)


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
        return {d: float(longer_s(np.asarray(gpu_s[d]), host_s[d])) / gpu_s[d] for d in TRACED}
    whole_s = sum(gpu_s.values())
    slowdown = float(longer_s(np.asarray(whole_s), sum(host_s.values()))) / whole_s
    return dict.fromkeys(TRACED, slowdown)


def host_time_s(software: Software, cost: PassCost) -> float:
    """Return the time in which the host launches a pass."""
    return cost.launches * software.host_launch_s + software.host_pass_s


def _steps(
    workload: Workload, software: Software, graph: BlockGraph, shape: StageShape, direction: Direction
) -> list[Step]:
    """Steps of a pass as the software runs them."""
    parallelism, sm_count = workload.parallelism, workload.default_collective_sm_count
    weights = weights_of(workload, 0, shape, sm_count)  # passes of one shape are alike: those of stage 0
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
    clock = np.array(float(gpu.maximum_clock_mhz))
    computing = Counter(Step(operators=step.operators) for step in steps if step.operators)
    whole = run_tally(gpu, Tally(Counter(), Counter(steps), whole_instruction=False), clock, known)
    alone = run_tally(gpu, Tally(Counter(), computing, whole_instruction=False), clock, known)
    return PassCost(
        gpu_s=float(whole.time_s),
        exposed_s=float(whole.time_s - alone.time_s),
        energy_j=float(whole.energy_j),
        launches=sum(sum(o.launches for o in s.operators) + (s.collective is not None) for s in steps),
    )


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
    graph: BlockGraph,
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
                gathering = gathering * _exposed_share(workload, float(gathering[0, 0]), forward_s)
            time_s, energy_j = np.sum([*parts.values(), gathering], axis=0)[:, 0]
            costs[direction] = UpdateCost(float(time_s), float(energy_j), float(gathering[0, 0]))
        elif direction is Direction.GRADIENT_REDUCTION and software.reduction is Reduction.BUCKETS:
            time_s, energy_j = update_costs(workload, graph, stage, backward_s, clocks)[direction][:, 0]
            costs[direction] = UpdateCost(float(time_s), float(energy_j), float(time_s))
        else:
            costs[direction] = _exchanged(workload, software, stage, direction)
    return costs


def _exposed_share(workload: Workload, gathering_s: float, forward_s: float) -> float:
    """Share of a gather of weights that a forward does not hide: the first bucket, and what exceeds the forward."""
    first = workload.chunks / max(workload.parallelism.split[0], 1)
    if not gathering_s:
        return 0.0
    return min(1.0, max(first, 1 - forward_s / gathering_s))


def _exchanged(workload: Workload, software: Software, stage: int, direction: Direction) -> UpdateCost:
    """Cost of summing gradients in one piece, with nothing beside it."""
    parallelism, gpu = workload.parallelism, workload.gpu
    if direction is Direction.GRADIENT_REDUCTION:
        found = reduction_collectives(parallelism, gpu, stage, stage_parameters(workload, stage))
    else:
        found = exchange_collectives(
            parallelism, gpu, workload.model.hidden_size * workload.model.vocab_size // parallelism.tp
        )
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
    waiting_j = idle_w * host_s + gpu.blocking_power_w * (time_s - busy_s)
    return IterationPrediction(
        time_s=time_s,
        forward_s=computing_s[Direction.FORWARD],
        backward_s=computing_s[Direction.BACKWARD],
        exposed_communication_s=exposed_s + communication_s,
        host_s=host_s,
        bubbles_s=time_s - busy_s,
        update_s=update_s,
        energy_j=(busy_j + waiting_j) * workload.parallelism.gpus,
        mfu=mfu(workload, time_s),
    )
