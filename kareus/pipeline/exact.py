"""Branch and bound for the fastest plan, whose energy every comparison at maximum throughput rests on.

At the least makespan most instructions are critical and have no choice, which leaves HiGHS little to search. Elsewhere
on the frontier the search is long and gains hundredths of a percent over rounding.
"""

from collections.abc import Sequence

import highspy
import numpy as np

from kareus.pipeline.formulation import Options, formulate, load
from kareus.pipeline.problem import Problem
from kareus.pipeline.rounding import TOLERANCE, available_s, repair

MOST_INSTRUCTIONS = 64
"""Pipelines with more instructions keep their rounded plan and its certified gap: the search would take minutes."""
MOST_NODES = 100
"""Nodes of the search tree; a count and not a time, so that results do not depend on the machine."""
SETTINGS = {
    "mip_max_nodes": MOST_NODES,
    "mip_rel_gap": 1e-7,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
}
"""For HiGHS; its default tolerances are too coarse for seconds."""


def least_energy_plan(problem: Problem, choice: Sequence[int], deadline_s: float) -> list[int]:
    """The plan of least energy within the deadline; where the search is cut short, the best known.

    Args:
        problem: what to plan.
        choice: a plan within the deadline: the one to improve on.
        deadline_s: bound on the makespan; at least that of the fastest plan.
    """
    if len(choice) > MOST_INSTRUCTIONS:
        return list(choice)
    windows_s = available_s(problem, [0] * len(choice), deadline_s)
    options = [
        [c for c, time_s in enumerate(points.times_s) if c == 0 or time_s <= window_s]
        for points, window_s in zip(problem.point_sets, windows_s, strict=True)
    ]
    found = _search(problem, options, deadline_s)
    if found is None:
        return list(choice)
    # HiGHS solves to its tolerances, so what it finds may be late by a rounding error.
    return min(list(choice), repair(problem, found, deadline_s), key=problem.effective_energy_j)


def _search(problem: Problem, options: Options, deadline_s: float) -> list[int] | None:
    """The best choice among `options` that HiGHS finds, or None."""
    formulation = formulate(problem, options)
    weights = np.concatenate([np.asarray(own, dtype=np.int32) for own in formulation.weights])
    highs = load(formulation, **SETTINGS)
    integer = np.full(len(weights), int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    highs.changeColsIntegrality(len(weights), weights, integer)
    highs.changeColBounds(formulation.makespan, 0.0, deadline_s * (1 + TOLERANCE))
    highs.run()
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    values = highs.getSolution().col_value
    return [
        max(zip(own, at, strict=True), key=lambda option: values[option[1]])[0]
        for own, at in zip(options, formulation.weights, strict=True)
    ]
