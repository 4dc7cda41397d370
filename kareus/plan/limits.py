"""Planning for exactly the limit that a selector gives, between the precomputed plans.

Imported only where there is a limit, since it needs the solver.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl

from kareus.errors import ArtifactError
from kareus.pipeline.frontiers import method_problem, plan_columns
from kareus.pipeline.methods import method_named
from kareus.pipeline.problem import Problem
from kareus.pipeline.solver import cheapest_within, fastest_within
from kareus.plan.selectors import Goal
from kareus.workload.slices import PipelineSlice

TOLERANCE = 1e-9
"""Share by which sums of floats may differ."""

Row = dict[str, Any]
"""Of `ITERATION`."""


def row_within(
    goal: Goal, limit: float, plans: pl.DataFrame, row: Row, microbatch: pl.DataFrame, config: PipelineSlice
) -> Row:
    """Plan for a deadline or an energy.

    Args:
        goal: `DEADLINE` or `ENERGY`.
        limit: seconds or joules.
        plans: rows of `ITERATION` of one method.
        row: the best of them within the limit.
        microbatch: the table `MICROBATCH`.
        config: the pipeline.

    Returns:
        A row like `row`: a better plan where there is one, else the same plan.

    Raises:
        ArtifactError: the tables do not belong together.
    """
    problem = method_problem(config, microbatch, method_named(row["method"]))
    _check_fastest(problem, row)
    if goal is Goal.DEADLINE:
        return _within_deadline(limit, row, problem, config)
    return _within_energy(limit, plans, row, problem, config)


def _within_deadline(deadline_s: float, row: Row, problem: Problem, config: PipelineSlice) -> Row:
    """The cheaper of `row` and the plan for this deadline; the gap of either is that at the deadline."""
    planned = cheapest_within(problem, deadline_s)
    better = planned.time_s <= deadline_s and planned.energy_j < row["energy_j"]
    chosen = {**row, **plan_columns(config, planned)} if better else row
    bound_j = min(planned.lower_bound_j, chosen["energy_j"])
    return {**chosen, "lower_bound_j": bound_j, "gap": chosen["energy_j"] / bound_j - 1}


def _within_energy(energy_j: float, plans: pl.DataFrame, row: Row, problem: Problem, config: PipelineSlice) -> Row:
    """A plan faster than `row`, slower than the next plan, which needs more energy; `row` where none is found."""
    faster_s = plans.filter(pl.col("time_s") < row["time_s"])["time_s"].to_list()
    if not faster_s:
        return row
    planned = fastest_within(problem, energy_j, (max(faster_s), row["time_s"]))
    return row if planned is None else {**row, **plan_columns(config, planned)}


def _check_fastest(problem: Problem, row: Mapping[str, Any]) -> None:
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    if fastest_s > row["time_s"] * (1 + TOLERANCE):
        raise ArtifactError(
            f"the iteration frontier has a plan of {row['time_s']:.6g} s, but the microbatch frontiers allow none "
            f"below {fastest_s:.6g} s; rerun the stage 'pipeline'."
        )
