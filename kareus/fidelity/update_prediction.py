"""What the update of the weights costs each stage at one clock, and of what that is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.fidelity.breakdown import InstructionCost
from kareus.graph.records import COMPLETING, BlockGraph, Direction
from kareus.update.costs import step_costs, update_costs
from kareus.workload.config import Workload

InstructionCosts = Mapping[tuple[int, int, Direction], InstructionCost]
"""By stage, chunk and direction."""


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
    workload: Workload, graph: BlockGraph, costs: InstructionCosts, frequency_mhz: int
) -> UpdatePredictions:
    """Return what the update costs.

    Args:
        workload: what is predicted.
        graph: operator graph of a block, of a whole microbatch.
        costs: of forwards and backwards; gradients are reduced beside these backwards.
        frequency_mhz: clock of all GPUs.
    """
    stages = range(workload.parallelism.pp)
    if not workload.iteration.include_update:
        return [{} for _ in stages]
    return [_stage(workload, graph, stage, _backwards_s(workload, costs, stage), frequency_mhz) for stage in stages]


def _backwards_s(workload: Workload, costs: InstructionCosts, stage: int) -> list[float]:
    """Time of the instruction that completes weight gradients, by chunk."""
    return [
        next(float(costs[stage, chunk, d].behaviour.time_s) for d in COMPLETING if (stage, chunk, d) in costs)
        for chunk in range(workload.chunks)
    ]


def _stage(
    workload: Workload, graph: BlockGraph, stage: int, backward_s: Sequence[float], frequency_mhz: int
) -> dict[Direction, UpdatePrediction]:
    clocks = np.array([float(frequency_mhz)])
    predictions = {}
    for direction, cost in update_costs(workload, graph, stage, backward_s, clocks).items():
        whole = {str(direction).replace("-", " "): cost}
        parts = step_costs(workload, stage, clocks) if direction is Direction.UPDATE else whole
        predictions[direction] = UpdatePrediction(
            time_s=float(cost[0, 0]),
            energy_j=float(cost[1, 0]),
            parts={name: own[:, 0] for name, own in parts.items()},
        )
    return predictions
