"""What a workload's iteration costs under a default method, from the GPU model alone: no search and no measurement.

Methods without a search run every instruction at one clock: `sequential`, and `nanobatching` with default schedules.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from kareus.arrays import Array
from kareus.errors import ConfigError
from kareus.fidelity.breakdown import COLLECTIVES, InstructionCost, instruction_cost
from kareus.fidelity.composition import iteration_s
from kareus.fidelity.update_prediction import InstructionCosts, UpdatePredictions, update_predictions
from kareus.gpu_model.gpu import Gpu, KernelUncertainty, Uncertainty
from kareus.gpu_model.model import KnownSteps
from kareus.gpu_model.thermal import RepeatedWork
from kareus.gpu_model.trust import known_kernel_uncertainty, known_uncertainty
from kareus.graph.records import Batch, BlockGraph, Direction, instruction_directions
from kareus.partition.extract import extract
from kareus.profile.programs import (
    Execution,
    StageShape,
    chunk_shapes,
    instruction_program,
    profiled_executions,
    weights_of,
)
from kareus.profile.sharded import ShardedWeights
from kareus.workload.config import Workload
from kareus.workload.memory import MemoryEstimate, estimate_memory
from kareus.workload.model_flops import mfu, tokens_per_iteration
from kareus.workload.overlap import nothing_to_overlap

PREDICTED = {"sequential": Execution.SEQUENTIAL, "nanobatching": Execution.NANOBATCHING}
"""How the instructions of each method that is predicted are executed."""
WAITING = "waiting"
"""Component: what a GPU waits for other stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """Predicted cost of one pipeline stage in one iteration."""

    stage: int
    layers: int
    """Blocks of all its chunks."""
    forward_s: float
    """Time of all its forwards."""
    backward_s: float
    """Time of all its backwards; of split ones, of both passes."""
    update_s: float
    """Time of the update of its weights; 0 where the iteration ends without it."""
    bubble_s: float
    """Time in which it waits."""
    energy_j: float
    """Energy of all its GPUs, over all replicas, waiting included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentPrediction:
    """Predicted cost of one component in one iteration."""

    name: str
    """A kind of operator in the blocks (`gemm`, `attention`, `attention-backward`, `memory`), `collectives` (what those
    of the blocks add), `embedding`, `head`, `overhead` (what isolated steps miss), `waiting`, or a part of the update:
    `gradient reduction`, `embedding exchange`, `gradient norm`, `optimizer step`, `weight gathering`."""
    time_s: float
    """Time of one GPU, the mean over all GPUs; components add up to the iteration."""
    energy_j: float
    """Energy of all GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrediction:
    """Predicted time of the collectives of the blocks in one iteration, of one GPU, the mean over all GPUs."""

    alone_s: float
    """Time that they would take by themselves."""
    exposed_s: float
    """Time that they add to computation."""
    hidden_s: float
    """Time that runs beside computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted cost of one iteration of a workload."""

    method: str
    frequency_mhz: int
    time_s: float
    energy_j: float
    """Energy of all GPUs, at the temperature that the GPU's coefficients are for."""
    warm_energy_j: float | None
    """The same at the temperatures that GPUs settle to; None where that of the air is not known."""
    tokens_per_s: float
    """Tokens of all replicas."""
    joules_per_token: float
    mfu: float
    """Model FLOPs utilisation, as `kareus.workload.model_flops` defines it."""
    stages: tuple[StagePrediction, ...]
    components: tuple[ComponentPrediction, ...]
    collectives: CollectivePrediction
    memory: MemoryEstimate
    """Of the fullest GPU."""
    uncertainty: Uncertainty | None
    """Errors of the GPU model; None where they were not measured for this GPU's numbers."""
    kernel_uncertainty: KernelUncertainty | None
    """The same of a GPU that was fitted to single kernels."""


def predict(workload: Workload, method: str = "sequential", frequency_mhz: int | None = None) -> Prediction:
    """Predict the time and energy of one iteration of a workload.

    Args:
        workload: as `kareus.resolve` returns it.
        method: `sequential` or `nanobatching`.
        frequency_mhz: clock of all GPUs; None is their maximum.

    Raises:
        ConfigError: the method or the clock cannot be predicted, or the workload was not resolved.
    """
    clock_mhz = workload.gpu.maximum_clock_mhz if frequency_mhz is None else frequency_mhz
    _check(workload, method, clock_mhz)
    graphs = extract(workload.model, workload.parallelism, workload.microbatch_size, workload.sequence_length)
    shapes = chunk_shapes(workload.parallelism.split, workload.chunks)
    costs = _instruction_costs(workload, graphs, shapes, PREDICTED[method], clock_mhz)
    updates = update_predictions(workload, graphs[Batch.MICROBATCH], costs, clock_mhz)
    time_s = iteration_s(
        workload,
        {kind: float(cost.behaviour.time_s) for kind, cost in costs.items()},
        [{direction: update.time_s for direction, update in stage.items()} for stage in updates],
    )
    stages = _stages(workload, costs, updates, time_s)
    energy_j = sum(stage.energy_j for stage in stages)
    tokens = tokens_per_iteration(workload)
    return Prediction(
        method=method,
        frequency_mhz=clock_mhz,
        time_s=time_s,
        energy_j=energy_j,
        warm_energy_j=_warm_energy_j(workload, stages, time_s),
        tokens_per_s=tokens / time_s,
        joules_per_token=energy_j / tokens,
        mfu=mfu(workload, time_s),
        stages=stages,
        components=_components(workload, costs, updates, stages),
        collectives=_collectives(workload, costs),
        memory=estimate_memory(workload),
        uncertainty=known_uncertainty(workload.gpu),
        kernel_uncertainty=known_kernel_uncertainty(workload.gpu),
    )


def _check(workload: Workload, method: str, clock_mhz: int) -> None:
    if method not in PREDICTED:
        raise ConfigError(
            f"method={method!r}: must be one of {', '.join(PREDICTED)}; other methods search, so make a plan instead."
        )
    halves = workload.parallelism.halves(workload.microbatch_size)
    if PREDICTED[method] is Execution.NANOBATCHING and not halves:
        raise ConfigError(
            f"method={method}, microbatch_size={workload.microbatch_size}: {nothing_to_overlap(workload)}"
        )
    least_mhz, most_mhz = workload.gpu.search_frequencies.minimum_mhz, workload.gpu.maximum_clock_mhz
    if not isinstance(clock_mhz, Integral) or not least_mhz <= clock_mhz <= most_mhz:
        raise ConfigError(f"frequency_mhz={clock_mhz!r}: must be a whole number from {least_mhz} to {most_mhz} MHz.")


def _instruction_costs(
    workload: Workload,
    graphs: dict[Batch, BlockGraph],
    shapes: Mapping[tuple[int, int], StageShape],
    execution: Execution,
    clock_mhz: int,
) -> InstructionCosts:
    """Costs of every kind of instruction; stages share them whose shape and collectives of weights are the same."""
    known: KnownSteps = {}
    sm_count = workload.testbed.default_collective_sm_count
    kinds = {place: (shape, weights_of(workload, place[0], shape, sm_count)) for place, shape in shapes.items()}
    costs: dict[tuple[StageShape, ShardedWeights | None], dict[Direction, InstructionCost]] = {}
    for shape, weights in dict.fromkeys(kinds.values()):
        own = costs[shape, weights] = {}
        for direction in instruction_directions(split_backward=workload.split_backward):
            possible = profiled_executions(graphs, direction)
            program = instruction_program(
                graphs,
                shape,
                direction,
                execution if execution in possible else Execution.SEQUENTIAL,
                recomputation=workload.recomputation,
                default_sm_count=sm_count,
                weights=weights,
            )
            own[direction] = instruction_cost(workload.gpu, program, direction, clock_mhz, known)
    return {(*place, direction): cost for place, kind in kinds.items() for direction, cost in costs[kind].items()}


def _stages(
    workload: Workload, costs: InstructionCosts, updates: UpdatePredictions, time_s: float
) -> tuple[StagePrediction, ...]:
    """Stages of an iteration that takes `time_s`; every microbatch passes each of their instructions once."""
    gpus, repeated = workload.parallelism.gpus_per_stage, workload.num_microbatches
    stages = []
    for stage, layers in enumerate(workload.parallelism.split):
        own = [(direction, cost.behaviour) for (place, _, direction), cost in costs.items() if place == stage]
        forward_s = repeated * sum(float(b.time_s) for direction, b in own if direction is Direction.FORWARD)
        update_s = sum(update.time_s for update in updates[stage].values())
        passes_s = repeated * sum(float(b.time_s) for _, b in own)
        busy_s = passes_s + update_s
        busy_j = repeated * sum(float(b.energy_j) for _, b in own)
        busy_j += sum(update.energy_j for update in updates[stage].values())
        stages.append(
            StagePrediction(
                stage=stage,
                layers=layers,
                forward_s=forward_s,
                backward_s=passes_s - forward_s,
                update_s=update_s,
                bubble_s=time_s - busy_s,
                energy_j=(busy_j + _waiting_j(workload.gpu, time_s - busy_s)) * gpus,
            )
        )
    return tuple(stages)


def _warm_energy_j(workload: Workload, stages: Sequence[StagePrediction], time_s: float) -> float | None:
    """Energy of all GPUs in iterations of `time_s` that follow one another for long; each stage has its temperature."""
    if workload.ambient_c is None:
        return None
    gpus, c = workload.parallelism.gpus_per_stage, workload.gpu.coefficients
    energy_j = 0.0
    for stage in stages:
        busy_s, waiting_j = time_s - stage.bubble_s, _waiting_j(workload.gpu, stage.bubble_s)
        work = RepeatedWork(
            period_s=time_s,
            busy_s=busy_s,
            busy_j=stage.energy_j / gpus - waiting_j,
            busy_degree_s=c.reference_temperature_c * busy_s,
            waiting_j=waiting_j,
        )
        energy_j += gpus * work.settled_j(workload.ambient_c, c)
    return energy_j


def _waiting_j(gpu: Gpu, bubble_s: float) -> float:
    """Energy of one GPU that waits."""
    return gpu.blocking_power_w * bubble_s


def _components(
    workload: Workload, costs: InstructionCosts, updates: UpdatePredictions, stages: Sequence[StagePrediction]
) -> tuple[ComponentPrediction, ...]:
    """Components of all instructions, and waiting."""
    totals: dict[str, Array] = defaultdict(lambda: np.zeros(2))
    for instruction in costs.values():
        for name, cost in instruction.parts.items():
            totals[name] = totals[name] + workload.num_microbatches * cost
    for update in (update for stage in updates for update in stage.values()):
        for name, cost in update.parts.items():
            totals[name] = totals[name] + cost
    bubbles_s = sum(stage.bubble_s for stage in stages)
    totals[WAITING] = np.array([bubbles_s, _waiting_j(workload.gpu, bubbles_s)])
    parallelism = workload.parallelism
    return tuple(
        ComponentPrediction(
            name=name, time_s=float(total[0]) / parallelism.pp, energy_j=float(total[1]) * parallelism.gpus_per_stage
        )
        for name, total in totals.items()
    )


def _collectives(workload: Workload, costs: InstructionCosts) -> CollectivePrediction:
    """Collectives of all instructions."""
    repeated = workload.num_microbatches / workload.parallelism.pp
    alone_s = repeated * sum(cost.collectives_alone_s for cost in costs.values())
    exposed_s = repeated * sum(float(cost.parts.get(COLLECTIVES, np.zeros(2))[0]) for cost in costs.values())
    return CollectivePrediction(alone_s=alone_s, exposed_s=exposed_s, hidden_s=max(alone_s - exposed_s, 0.0))
