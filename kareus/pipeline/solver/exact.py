"""Branch and bound for the fastest plan, whose energy every comparison at maximum throughput rests on.

At the least makespan most instructions are critical and have no choice, which leaves HiGHS little to search. Elsewhere
on the frontier the search is long and gains hundredths of a percent over rounding.
"""

import highspy
import numpy as np

from kareus.pipeline.solver.formulation import formulate, load
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, latest_ends, mirrored
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.rounding import reclaim

MOST_INSTRUCTIONS = 64
"""Pipelines with more instructions keep their rounded plan and its certified gap: the search would take minutes."""
MOST_NODES = 100
"""Nodes of the search tree; a count and not a time, so that results do not depend on the machine.

On the pipelines of `benchmarks/local_search.py` the search finds no cheaper plan, but takes longer than all else. Tests
hold the fastest plan to the optimum on graphs of any shape.
"""
SETTINGS = {
    "mip_rel_gap": 1e-7,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
}
"""For HiGHS; its default tolerances are too coarse for times."""


def least_energy_plan(problem: Problem, choice: list[int], deadline_s: float) -> list[int]:
    """The plan of least energy within the deadline; where the search is cut short, the best known.

    Args:
        problem: what to plan.
        choice: a plan within the deadline, the one to improve on.
        deadline_s: bound on the makespan; at least that of the fastest plan.
    """
    if len(choice) > MOST_INSTRUCTIONS:
        return choice
    found = _search(problem, _options(problem, deadline_s), deadline_s)
    if found is None:
        return choice
    # HiGHS solves to its tolerances, so what it finds may be late by a rounding error.
    in_time = reclaim(problem, found[:, np.newaxis], np.array([deadline_s * (1 + TOLERANCE)]))[:, 0].tolist()
    return min(choice, in_time, key=problem.effective_energy_j)


def _options(problem: Problem, deadline_s: float) -> list[list[int]]:
    """By instruction, the points that leave time for all others at their fastest."""
    fastest_s = np.array([[points.times_s[0]] for points in problem.point_sets])
    latest_s = latest_ends(problem.dag, fastest_s, np.array([deadline_s * (1 + TOLERANCE)]))
    windows_s = latest_s + latest_ends(mirrored(problem).dag, fastest_s, np.zeros(1))
    return [
        [c for c, time_s in enumerate(points.times_s) if c == 0 or time_s <= window_s]
        for points, window_s in zip(problem.point_sets, windows_s[:, 0], strict=True)
    ]


def _search(problem: Problem, options: list[list[int]], deadline_s: float) -> Choices | None:
    """The best choice among `options` that HiGHS finds, or None."""
    formulation = formulate(problem, options)
    first, count = formulation.makespan + 1, len(formulation.owners)
    highs = load(formulation, mip_max_nodes=MOST_NODES, **SETTINGS)
    integer = np.full(count, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    highs.changeColsIntegrality(count, np.arange(first, first + count, dtype=np.int32), integer)
    for step in np.flatnonzero(formulation.owners[1:] == formulation.owners[:-1]):
        highs.addRow(0.0, highspy.kHighsInf, 2, np.array([0, 1], dtype=np.int32) + first + step, np.array([1.0, -1.0]))
    highs.changeColBounds(formulation.makespan, 0.0, deadline_s * (1 + TOLERANCE) / formulation.unit_s)
    highs.run()
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    taken = formulation.shares(np.asarray(highs.getSolution().col_value)).round()
    # The options of an instruction are its fastest points, so an index into them is one into its point set.
    return np.bincount(formulation.owners, weights=taken, minlength=len(options)).astype(np.int64)
