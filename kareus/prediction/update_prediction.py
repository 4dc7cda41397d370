"""Costs of the update of the weights on each stage at one clock, and of what they are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.model import Behaviour, KnownSteps
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import BlockGraph, Direction
from kareus.update.costs import PassTimes, pass_times, step_costs, update_costs
from kareus.update.reduction_costs import SharedCosts
from kareus.workload.config import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePrediction:
    """Predicted cost of one instruction of the update, of one GPU."""

    time_s: float
    energy_j: float
    parts: Mapping[str, Array]
    """Seconds and joules by component, shape (2,); they add up to the instruction's."""


UpdatePredictions = Sequence[Mapping[Direction, UpdatePrediction]]
"""By stage; empty where the iteration ends without the update."""


def update_predictions(
    workload: Workload,
    graph: BlockGraph,
    behaviours: Mapping[InstructionKind, Behaviour],
    frequency_mhz: int,
    known_steps: KnownSteps,
) -> UpdatePredictions:
    """Return what the update costs.

    Args:
        workload: what is predicted.
        graph: operator graph of a block, of a whole microbatch.
        behaviours: of forwards and backwards, which collectives of the update run beside.
        frequency_mhz: clock of all GPUs.
        known_steps: costs of steps on this GPU, taken from and added to.
    """
    stages = range(workload.parallelism.pp)
    if not workload.iteration.include_update:
        return [{} for _ in stages]
    times_s = {kind: float(behaviour.time_s) for kind, behaviour in behaviours.items()}
    return [
        _stage(workload, graph, stage, pass_times(workload, stage, times_s), frequency_mhz, known_steps)
        for stage in stages
    ]


def _stage(
    workload: Workload, graph: BlockGraph, stage: int, passes: PassTimes, frequency_mhz: int, known_steps: KnownSteps
) -> dict[Direction, UpdatePrediction]:
    clocks = np.array([float(frequency_mhz)])
    predictions = {}
    for direction, cost in update_costs(workload, graph, stage, passes, clocks, SharedCosts(known_steps)).items():
        whole = {str(direction).replace("-", " "): cost}
        parts = step_costs(workload, stage, passes, clocks) if direction is Direction.UPDATE else whole
        predictions[direction] = UpdatePrediction(
            time_s=float(cost[0, 0]),
            energy_j=float(cost[1, 0]),
            parts={name: values[:, 0] for name, values in parts.items()},
        )
    return predictions
