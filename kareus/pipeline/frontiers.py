"""The iteration frontier of every method, from the microbatch frontiers that it plans with."""

import itertools
from collections import defaultdict
from typing import Any

import polars as pl

from kareus.errors import ArtifactError
from kareus.graph.records import instruction_directions
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.methods import METHODS, REQUIRED, Method, method_points
from kareus.pipeline.solver.dag import build_dag
from kareus.pipeline.solver.frontier import PlannedIteration, iteration_frontier
from kareus.pipeline.solver.problem import PointSet, Problem, point_set
from kareus.pipeline.transfers import transfers_s

PointSets = dict[tuple[int, int, str], PointSet]
"""By stage, chunk and direction."""


def iteration_rows(config: PipelineSlice, microbatch: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of `ITERATION`: the frontier of every method that has points.

    Args:
        config: the pipeline.
        microbatch: a table `MICROBATCH` of its stages.

    Raises:
        ArtifactError: a stage or direction of a method has no points.
    """
    known = set(microbatch["method"])
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        if method.points_of not in known and method.points_of not in REQUIRED:
            continue
        plans = iteration_frontier(
            method_problem(config, microbatch, method), config.pipeline.deadlines if method.has_frontier else 1
        )
        rows += [
            {"method": method.name, "plan": number, **plan_columns(config, plan)} for number, plan in enumerate(plans)
        ]
    return rows


def method_problem(config: PipelineSlice, microbatch: pl.DataFrame, method: Method) -> Problem:
    """What `method` plans: the instructions of an iteration, and the points that each may run at.

    Raises:
        ArtifactError: a stage or direction has no points.
    """
    instructions = instructions_of(config)
    sets = _point_sets(config, microbatch, method)
    return Problem(
        dag=build_dag(instructions, transfers_s(config)),
        point_sets=tuple(sets[i.stage, i.chunk, i.direction] for i in instructions),
        waiting_power_w=config.gpu.blocking_power_w * config.parallelism.gpus,
    )


def plan_columns(config: PipelineSlice, plan: PlannedIteration) -> dict[str, Any]:
    """Columns of `ITERATION` that say what a plan is and costs: all but its method and its number."""
    static_energy_j = config.gpu.static_power_w * plan.time_s * config.parallelism.gpus
    return {
        "time_s": plan.time_s,
        "energy_j": plan.energy_j,
        "static_energy_j": static_energy_j,
        "dynamic_energy_j": plan.energy_j - static_energy_j,
        "deadline_s": plan.deadline_s,
        "lower_bound_j": plan.lower_bound_j,
        "gap": plan.gap,
        "points": plan.points,
    }


def _point_sets(config: PipelineSlice, microbatch: pl.DataFrame, method: Method) -> PointSets:
    """What the instructions of each chunk and direction may run at; energies of all GPUs of the stage."""
    points = defaultdict(list)
    for row in method_points(config, microbatch, method).iter_rows(named=True):
        energy_j = row["effective_energy_j"] * config.parallelism.gpus_per_stage
        points[row["stage"], row["chunk"], row["direction"]].append((row["point"], row["time_s"], energy_j))
    clock = "" if method.has_frontier else f" at {config.gpu.maximum_clock_mhz} MHz"
    places = itertools.product(range(config.parallelism.pp), range(config.chunks))
    for (stage, chunk), direction in itertools.product(
        places, instruction_directions(split_backward=config.split_backward)
    ):
        if (stage, chunk, direction) not in points:
            place = f"stage {stage}{f', chunk {chunk}' * (config.chunks > 1)}"
            raise ArtifactError(
                f"the microbatch frontiers of '{method.points_of}' have no points for the {direction} of {place}{clock}"
                f", expected {config.parallelism.pp} stages; rerun the stage 'frontier'."
            )
    return {key: point_set(of_key) for key, of_key in points.items()}
