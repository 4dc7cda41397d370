"""Predicting an iteration of any software: passes of microbatches on the GPU model, the host, the pipeline, the update.

The host launches ahead of the GPU, so that what takes longer decides: over a pass where the host waits for messages
between stages, else over all passes of a stage. An instruction is predicted once for each shape of a stage; many
measured iterations share them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kareus.fidelity.composition import iteration_s
from kareus.fidelity.iterations import number_formats, unfused
from kareus.fidelity.iterations.hosts import host_slowdown
from kareus.fidelity.iterations.passes import PassCost, charged, of_software, pass_cost, steps_of_pass, total
from kareus.fidelity.iterations.updates import UpdateCost, stage_update
from kareus.fidelity.iterations.workloads import IterationSubject
from kareus.gpu_model.energy import idle_power_w
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import KnownSteps
from kareus.graph.records import TRACED, Batch, BlockGraph, Direction
from kareus.partition.extract import extract
from kareus.profile.programs import StageShape, chunk_shapes
from kareus.workload.config import Workload
from kareus.workload.model_flops import mfu
from kareus.workload.software import Accounting, Software

POWER_VARIATION, VARIATION = 0.023, 0.009
"""Standard deviations of the power of GPUs of one kind, and of the time of those that the power limit holds back.

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


class Predictor:
    """Predicts iterations; keeps what they share."""

    def __init__(self) -> None:
        self._graphs: dict[Any, BlockGraph] = {}
        self._known: dict[str, KnownSteps] = {}
        self._passes: dict[Any, PassCost] = {}

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
        parts = {
            (place, direction): [
                self._pass(workload, numbers, software, graph, part, direction) for part in parts_of(shape, software)
            ]
            for place, shape in shapes.items()
            for direction in TRACED
        }
        passes = {key: total(costs) for key, costs in parts.items()}
        slowed = {stage: host_slowdown(workload, software, parts, stage) for stage in range(parallelism.pp)}
        times_s = {
            (place, direction): cost.gpu_s * slowed[place[0]][direction]
            + (software.host_microbatch_s if direction is Direction.FORWARD else 0.0)
            for (place, direction), cost in passes.items()
        }
        ran = replace(subject, workload=workload)
        updates = [stage_update(ran, stage, times_s) for stage in range(parallelism.pp)]
        slower = {key: slowest_of(parallelism.gpus, held_share(workload.gpu, passes[key])) for key in times_s}
        time_s = iteration_s(
            workload,
            {(*place, direction): s * slower[place, direction] for (place, direction), s in times_s.items()},
            [{direction: cost.time_s for direction, cost in update.items()} for update in updates],
        )
        return _prediction(workload, passes, times_s, updates, time_s)

    def _graph(self, workload: Workload, software: Software, *, in_fp8: bool) -> BlockGraph:
        """Operator graph of a block; whatever else the layout is, the same GPU-local sizes give the same graph."""
        model, parallelism = workload.model, workload.parallelism
        alike = (
            replace(model, num_layers=1, layers_per_stage={}, name="any"),
            replace(parallelism, dp=1, pp=1, layers_per_stage=None),
        )
        traced = (repr(alike), workload.microbatch_size, workload.sequence_length, software.attention_kernel)
        if traced not in self._graphs:
            graphs = extract(*alike, workload.microbatch_size, workload.sequence_length, software.attention_kernel)
            self._graphs[traced] = graphs[Batch.MICROBATCH]
        group = workload.microbatch_size * model.num_attention_heads // parallelism.tp
        single = not software.fused_attention and group % software.softmax_multiple > 0
        key = (traced, single, software.stream_dropout, in_fp8)
        if key not in self._graphs:
            graph = unfused.in_single_kernels(self._graphs[traced]) if single else self._graphs[traced]
            graph = unfused.with_stream_dropout(graph) if software.stream_dropout else graph
            self._graphs[key] = number_formats.in_fp8(graph) if in_fp8 else graph
        return self._graphs[key]

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
        overlaps = (software.tensor_overlap, software.context_overlap, software.gather_beside_dgrad)
        by_software = (overlaps, software.gradient_bytes)
        key = (id(graph), shape, direction, workload.recomputation, on_gpu, by_software, replicas)
        if key not in self._passes:
            steps = steps_of_pass(workload, software, graph, shape, direction)
            known = self._known.setdefault(numbers, {})
            self._passes[key] = pass_cost(workload.gpu, steps, known)
        return of_software(self._passes[key], software, workload.gpu)


def parts_of(shape: StageShape, software: Software) -> list[StageShape]:
    """Return the parts of a stage's pass that are predicted by themselves."""
    if software.accounting is not Accounting.TRACES:
        return [shape]
    parts = [replace(shape, first=False, last=False), replace(shape, layers=0)]
    return [part for part in parts if part.layers or part.first or part.last]


def held_share(gpu: Gpu, cost: PassCost) -> float:
    """Return the share of GPUs of one kind that the power limit holds back in a pass, where a mean one has this cost.

    It is 1 where a mean one is held, and falls with the tail of the distribution of power below.
    """
    below = (1 - cost.energy_j / cost.gpu_s / gpu.throttling_power_w) / POWER_VARIATION
    return math.erfc(max(below, 0.0) / math.sqrt(2))


def slowest_of(gpus: int, held: float = 1.0) -> float:
    """Return the time of the slowest of as many GPUs, which all wait for, over that of a mean one.

    The largest of n normal numbers is about sqrt(2 ln n) standard deviations above their mean, less a slowly varying
    correction (Cramer 1946, section 28.6).

    Args:
        gpus: that wait for each other.
        held: share of them that the power limit holds back; the others run at the highest clock.
    """
    gpus = round(gpus * held)
    if gpus <= 1:
        return 1.0
    most = math.sqrt(2 * math.log(gpus))
    return 1 + VARIATION * max(most - (math.log(math.log(gpus)) + math.log(4 * math.pi)) / (2 * most), 0.5)


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
