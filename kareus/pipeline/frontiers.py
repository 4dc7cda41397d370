"""The iteration frontier of every method, from the microbatch frontiers that it plans with."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import polars as pl

from kareus.errors import ArtifactError
from kareus.gpu_model.waiting import effective_energy_j, waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pareto import pareto_order
from kareus.pipeline.clock_changes import clocked_points
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.fewer_changes import fewer_changes
from kareus.pipeline.instructions import instruction_rows, instructions_by_stage, instructions_of
from kareus.pipeline.methods import METHODS, REQUIRED, Method, method_points
from kareus.pipeline.solver.dag import iteration_dag
from kareus.pipeline.solver.frontier import PlannedIteration, frontier_from, iteration_frontier
from kareus.pipeline.solver.problem import PointSet, Problem, point_set
from kareus.pipeline.solver.starts import Starts
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION


def solve_iteration(
    config: PipelineSlice, microbatch: pl.DataFrame, methods: Sequence[Method] = METHODS
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Solve the iteration frontier of every method that has points.

    Args:
        config: the pipeline.
        microbatch: a table `MICROBATCH` of its stages.
        methods: those to solve for.

    Returns:
        The tables `ITERATION` and `INSTRUCTIONS`.

    Raises:
        ArtifactError: a stage or direction of a method has no points.
    """
    instructions = INSTRUCTIONS.frame(instruction_rows(instructions_of(config)))
    return ITERATION.frame(iteration_rows(config, microbatch, methods)), instructions


def iteration_rows(
    config: PipelineSlice, microbatch: pl.DataFrame, methods: Sequence[Method] = METHODS
) -> list[dict[str, Any]]:
    """Rows of `ITERATION`: the frontier of every method that has points.

    Args:
        config: the pipeline.
        microbatch: a table `MICROBATCH` of its stages.
        methods: those to solve for.

    Raises:
        ArtifactError: a stage or direction of a method has no points.
    """
    measured = set(microbatch["method"])
    rows: list[dict[str, Any]] = []
    for method in methods:
        if method.points_of not in measured and method.points_of not in REQUIRED:
            continue
        plans = _plans(config, microbatch, method)
        rows += [
            {"method": method.name, "plan": number, **plan_columns(config, plan)} for number, plan in enumerate(plans)
        ]
    return rows


def _plans(config: PipelineSlice, microbatch: pl.DataFrame, method: Method) -> list[PlannedIteration]:
    """Return the frontier of a method, its changes of clock priced and few; a method at one clock has no change."""
    problem = method_problem(config, microbatch, method)
    if not method.has_frontier:
        return iteration_frontier(problem, 1)
    starts = Starts(problem)
    free = frontier_from(starts, config.pipeline.deadlines)
    if config.gpu.clock_change.is_free:
        return free
    plans = fewer_changes(
        starts, clocked_points(config, microbatch, method.name), free, [plan.deadline_s for plan in free]
    )
    return [plans[n] for n in pareto_order([(plan.time_s, plan.energy_j) for plan in plans])]


def method_problem(config: PipelineSlice, microbatch: pl.DataFrame, method: Method) -> Problem:
    """What `method` plans: the instructions of an iteration, and the points that each may run at.

    Raises:
        ArtifactError: a stage or direction has no points.
    """
    rows = method_points(config, microbatch, method)
    clocks_mhz = rows["frequency_mhz"].unique().to_list()
    least_w = min((waiting_power_w(config.gpu, clock) for clock in clocks_mhz), default=config.gpu.blocking_power_w)
    sets = _point_sets(config, rows, method, least_w)
    return Problem(
        dag=iteration_dag(config),
        point_sets=tuple(sets[i.key.kind] for i in instructions_of(config)),
        waiting_power_w=least_w * config.parallelism.gpus,
        stages=instructions_by_stage(instructions_of(config)),
    )


def plan_columns(config: PipelineSlice, plan: PlannedIteration) -> dict[str, Any]:
    """Columns of `ITERATION` that say what a plan is and costs: all but its method and number."""
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


def _point_sets(
    config: PipelineSlice, rows: pl.DataFrame, method: Method, least_w: float
) -> dict[InstructionKind, PointSet]:
    """Return what the instructions of each kind may run at; energies are those of all GPUs of the stage.

    Args:
        config: the pipeline.
        rows: of `MICROBATCH` that the method plans with.
        method: whose problem it is.
        least_w: power of a GPU that waits at the clock of `rows` at which it is least.
    """
    gpus = config.parallelism.gpus_per_stage
    points: dict[InstructionKind, list[tuple[int, float, float]]] = defaultdict(list)
    above_w: dict[InstructionKind, dict[int, float]] = defaultdict(dict)
    for row in rows.iter_rows(named=True):
        energy_j = gpus * effective_energy_j(row["energy_j"], row["time_s"], least_w)
        kind = InstructionKind(row["stage"], row["chunk"], Direction(row["direction"]))
        points[kind].append((row["point"], row["time_s"], energy_j))
        if config.gpu.waiting_shares:
            above_w[kind][row["point"]] = gpus * (waiting_power_w(config.gpu, row["frequency_mhz"]) - least_w)
    clock = "" if method.has_frontier else f" at {config.gpu.maximum_clock_mhz} MHz"
    for kind in dict.fromkeys(i.key.kind for i in instructions_of(config)):
        if kind not in points:
            place = f"stage {kind.stage}{f', chunk {kind.chunk}' * (config.chunks > 1)}"
            raise ArtifactError(
                f"the microbatch frontiers of '{method.points_of}' have no points for the {kind.direction} of "
                f"{place}{clock}"
                f", expected {config.parallelism.pp} stages; rerun the stage 'frontier'."
            )
    return {kind: point_set(of_kind, above_w[kind]) for kind, of_kind in points.items()}
