"""A plan as one schedule for each rank, in the order of ranks and with the names of Megatron-LM's 1F1B loop.

Global ranks number tensor parallelism fastest, then context parallelism, then data parallelism, then the pipeline
(Megatron-LM's default order, `tp-cp-ep-dp-pp`). All ranks of a stage run the same steps.
"""

from pathlib import Path
from typing import Any

from kareus.artifacts.files import read_json
from kareus.errors import ArtifactError
from kareus.graph.records import UPDATING
from kareus.model.config import Parallelism
from kareus.plans.document import Plan, PlannedInstruction, StagePlan

FUNCTIONS = {"forward": "forward_step", "backward": "backward_step"}
"""Megatron-LM's names of instructions' functions; others keep their own name."""


def rank_schedules(plan: Plan, parallelism: Parallelism) -> dict[str, Any]:
    """The document: what was planned, the steps of every stage, and the stage of every rank.

    Args:
        plan: a checked plan.
        parallelism: of the workload that it is for.
    """
    p = parallelism
    ranks = [
        {"rank": rank, "tp_rank": tp, "cp_rank": cp, "dp_rank": dp, "pp_rank": pp}
        for rank, (pp, dp, cp, tp) in enumerate(
            (pp, dp, cp, tp) for pp in range(p.pp) for dp in range(p.dp) for cp in range(p.cp) for tp in range(p.tp)
        )
    ]
    return {
        "workload": plan.workload,
        "method": plan.method,
        "selector": plan.selector,
        "testbed": plan.testbed.label,
        "predicted_time_s": plan.prediction.time_s,
        "predicted_energy_j": plan.prediction.energy_j,
        "stages": [_stage(stage) for stage in plan.stages],
        "ranks": ranks,
    }


def are_rank_schedules(path: Path) -> bool:
    """Return whether a file is one of `rank_schedules`."""
    try:
        document = read_json(path)
    except ArtifactError:
        return False
    return isinstance(document, dict) and {"workload", "selector", "stages", "ranks"} <= set(document)


def _stage(stage: StagePlan) -> dict[str, Any]:
    return {
        "pp_rank": stage.stage,
        "num_layers": stage.layers,
        "steps": [_step(instruction) for instruction in stage.instructions],
    }


def _step(instruction: PlannedInstruction) -> dict[str, Any]:
    direction = str(instruction.direction)
    return {
        "function": FUNCTIONS.get(direction, direction),
        "microbatch": None if instruction.direction in UPDATING else instruction.microbatch,
        "model_chunk": instruction.chunk,
        "frequency_mhz": instruction.frequency_mhz,
        "execution": str(instruction.execution),
        "overlaps": [
            {"partition": c.partition, "launch_with": c.launch, "sm_count": c.sm_count} for c in instruction.partitions
        ],
    }
