"""Costs of a workload's iteration under a default method, from the GPU model alone: no search, no measurement.

Methods without a search run every instruction at one clock: `sequential`, and `nanobatching` with default schedules.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, TypeVar

import numpy as np

from kareus.arrays import Array
from kareus.errors import ConfigError
from kareus.gpu_model.gpu import KernelUncertainty, Uncertainty
from kareus.gpu_model.model import Behaviour, KnownSteps, run_tally, tally
from kareus.gpu_model.trust import known_kernel_uncertainty, known_uncertainty
from kareus.gpu_model.waiting import effective_energy_j, total_energy_j, waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import UPDATING, Batch, BlockGraph, Direction, Program, instruction_directions
from kareus.partition.extract import operator_graphs
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.iteration import ComposedIteration, iteration_cost
from kareus.pipeline.solver.dag import iteration_dag
from kareus.prediction.breakdown import COLLECTIVES, InstructionCost, instruction_cost, sustained_cost
from kareus.prediction.host_copies import copied, with_copies
from kareus.prediction.update_prediction import UpdatePredictions, update_predictions
from kareus.profile.programs import (
    Execution,
    StageShape,
    instruction_program,
    laid_out_shapes,
    profiled_executions,
    weights_of,
)
from kareus.profile.sharded import ShardedWeights
from kareus.workload.config import Workload, nothing_to_overlap
from kareus.workload.memory import MemoryEstimate, estimate_memory
from kareus.workload.model_flops import mfu, tokens_per_iteration
from kareus.workload.slices import cut

InstructionCosts = Mapping[InstructionKind, InstructionCost]

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
    of the blocks add), `embedding`, `head`, `overhead` (what the host adds, and what isolated steps miss), `waiting`,
    `copies to the host` (what of them outlasts a pass), or a part of the update: `gradient reduction`, `embedding
    exchange`, `gradient norm`, `optimizer step`, `optimizer on the host`, `weight gathering`, `weight casting`."""
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
    """Predicted cost of one iteration of a workload.

    Example:
        >>> import kareus
        >>> predicted = kareus.predict(*kareus.resolve(["gpu=h200"]))
        >>> [f"stage {stage.stage} waits for {stage.bubble_s:.2f} s" for stage in predicted.stages]
        ['stage 0 waits for ... s', 'stage 1 waits for ... s']
    """

    method: str
    frequency_mhz: int
    time_s: float
    energy_j: float
    """Energy of all GPUs, at the temperatures that they settle to where that of the air is known."""
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


def predict(
    workload: Workload,
    method: str = "sequential",
    frequency_mhz: int | None = None,
    steps: KnownSteps | None = None,
) -> Prediction:
    """Predict the time and energy of one iteration of a workload.

    Args:
        workload: as `kareus.resolve` returns it.
        method: `sequential` or `nanobatching`.
        frequency_mhz: clock of all GPUs; None is their maximum.
        steps: costs of steps of the same GPU, taken from and added to; None for none.

    Raises:
        ConfigError: the method or the clock cannot be predicted, or the workload was not resolved.
    """
    clock_mhz = workload.gpu.maximum_clock_mhz if frequency_mhz is None else frequency_mhz
    _check(workload, method, clock_mhz)
    programs = instruction_programs(workload, PREDICTED[method])
    steps = {} if steps is None else steps
    costs = programs.each(
        lambda kind, program: instruction_cost(workload.gpu, program, kind.direction, clock_mhz, steps)
    )
    costs = {kind: sustained_cost(cost, workload.gpu) for kind, cost in costs.items()}
    costs = {kind: with_copies(workload, kind, cost, clock_mhz) for kind, cost in costs.items()}
    behaviours = {kind: cost.behaviour for kind, cost in costs.items()}
    updates = update_predictions(workload, programs.graphs[Batch.MICROBATCH], behaviours, clock_mhz, steps)
    time_s, energy_j = composed(workload, behaviours, updates, clock_mhz)
    waiting_w = waiting_power_w(workload.gpu, clock_mhz)
    stages = _stages(workload, behaviours, updates, time_s, waiting_w)
    tokens = tokens_per_iteration(workload)
    return Prediction(
        method=method,
        frequency_mhz=clock_mhz,
        time_s=time_s,
        energy_j=energy_j,
        tokens_per_s=tokens / time_s,
        joules_per_token=energy_j / tokens,
        mfu=mfu(workload, time_s),
        stages=stages,
        components=_components(workload, costs, updates, stages, waiting_w),
        collectives=_collectives(workload, costs),
        memory=estimate_memory(workload),
        uncertainty=known_uncertainty(workload.gpu),
        kernel_uncertainty=known_kernel_uncertainty(workload.gpu),
    )


def predict_time_s(workload: Workload) -> float:
    """Return the time of `predict` for sequential execution at the maximum clock, without its parts."""
    programs = instruction_programs(workload, Execution.SEQUENTIAL)
    known_steps: KnownSteps = {}
    clock = float(workload.gpu.maximum_clock_mhz)
    behaviours = programs.each(lambda _, program: run_tally(workload.gpu, tally(program), clock, known_steps))
    behaviours = {kind: copied(workload, kind, cost, clock) for kind, cost in behaviours.items()}
    updates = update_predictions(workload, programs.graphs[Batch.MICROBATCH], behaviours, int(clock), known_steps)
    return composed(workload, behaviours, updates, clock).time_s


def _check(workload: Workload, method: str, clock_mhz: int) -> None:
    if method not in PREDICTED:
        raise ConfigError(
            f"method={method!r}: must be one of {', '.join(PREDICTED)}; other methods search, so make a plan instead."
        )
    if PREDICTED[method] is Execution.NANOBATCHING and not workload.parallelism.halves(workload.microbatch_size):
        raise ConfigError(
            f"method={method}, microbatch_size={workload.microbatch_size}: {nothing_to_overlap(workload)}"
        )
    least_mhz, most_mhz = workload.gpu.search_frequencies.minimum_mhz, workload.gpu.maximum_clock_mhz
    if not isinstance(clock_mhz, Integral) or not least_mhz <= clock_mhz <= most_mhz:
        raise ConfigError(f"frequency_mhz={clock_mhz!r}: must be a whole number from {least_mhz} to {most_mhz} MHz.")


Cost = TypeVar("Cost")


class InstructionPrograms(NamedTuple):
    """Operator graphs of a workload, and what each kind of instruction executes."""

    graphs: dict[Batch, BlockGraph]
    of_kind: dict[InstructionKind, Program]

    def each(self, evaluate: Callable[[InstructionKind, Program], Cost]) -> dict[InstructionKind, Cost]:
        """Return what `evaluate` says of every kind; of kinds that share a program it is asked once."""
        first = {id(program): kind for kind, program in reversed(self.of_kind.items())}
        costs = {key: evaluate(kind, self.of_kind[kind]) for key, kind in first.items()}
        return {kind: costs[id(program)] for kind, program in self.of_kind.items()}


def instruction_programs(workload: Workload, execution: Execution) -> InstructionPrograms:
    """Return the programs of every kind of instruction; kinds that execute the same share one."""
    graphs = operator_graphs(workload)
    sm_count = workload.default_collective_sm_count
    made: dict[tuple[StageShape, ShardedWeights | None, Direction], Program] = {}
    of_kind: dict[InstructionKind, Program] = {}
    for (stage, chunk), shape in laid_out_shapes(workload).items():
        weights = weights_of(workload, stage, shape, sm_count)
        for direction in instruction_directions(split_backward=workload.split_backward):
            possible = profiled_executions(graphs, direction)
            if (shape, weights, direction) not in made:
                made[shape, weights, direction] = instruction_program(
                    graphs,
                    shape,
                    direction,
                    execution if execution in possible else Execution.SEQUENTIAL,
                    recomputation=workload.recomputation,
                    default_sm_count=sm_count,
                    software=workload.software,
                    weights=weights,
                )
            of_kind[InstructionKind(stage, chunk, direction)] = made[shape, weights, direction]
    return InstructionPrograms(graphs, of_kind)


def composed(
    workload: Workload, behaviours: Mapping[InstructionKind, Behaviour], updates: UpdatePredictions, clock_mhz: float
) -> ComposedIteration:
    """Return the time and energy of an iteration, of all GPUs at one clock."""
    gpus, waiting_w = workload.parallelism.gpus_per_stage, waiting_power_w(workload.gpu, clock_mhz)
    pipeline = cut(workload, "pipeline")
    times_s, effective_j = [], []
    for instruction in instructions_of(pipeline):
        key = instruction.key
        cost = updates[key.stage][key.direction] if key.direction in UPDATING else behaviours[key.kind]
        times_s.append(float(cost.time_s))
        effective_j.append(gpus * effective_energy_j(float(cost.energy_j), times_s[-1], waiting_w))
    return iteration_cost(iteration_dag(pipeline), times_s, effective_j, waiting_w * workload.parallelism.gpus)


def _stages(
    workload: Workload,
    behaviours: Mapping[InstructionKind, Behaviour],
    updates: UpdatePredictions,
    time_s: float,
    waiting_w: float,
) -> tuple[StagePrediction, ...]:
    """Stages of an iteration that takes `time_s`; every microbatch passes each of their instructions once."""
    gpus, repeated = workload.parallelism.gpus_per_stage, workload.num_microbatches
    stages = []
    for stage, layers in enumerate(workload.parallelism.split):
        of_stage = [(kind.direction, behaviour) for kind, behaviour in behaviours.items() if kind.stage == stage]
        forward_s = repeated * sum(float(b.time_s) for direction, b in of_stage if direction is Direction.FORWARD)
        update_s = sum(update.time_s for update in updates[stage].values())
        passes_s = repeated * sum(float(b.time_s) for _, b in of_stage)
        busy_s = passes_s + update_s
        busy_j = repeated * sum(float(b.energy_j) for _, b in of_stage)
        busy_j += sum(update.energy_j for update in updates[stage].values())
        stages.append(
            StagePrediction(
                stage=stage,
                layers=layers,
                forward_s=forward_s,
                backward_s=passes_s - forward_s,
                update_s=update_s,
                bubble_s=max(0.0, time_s - busy_s),  # a stage that never waits may round to less
                energy_j=total_energy_j(effective_energy_j(busy_j, busy_s, waiting_w), time_s, waiting_w) * gpus,
            )
        )
    return tuple(stages)


def _components(
    workload: Workload,
    costs: InstructionCosts,
    updates: UpdatePredictions,
    stages: Sequence[StagePrediction],
    waiting_w: float,
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
    totals[WAITING] = np.array([bubbles_s, total_energy_j(0.0, bubbles_s, waiting_w)])
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
