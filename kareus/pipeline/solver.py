"""The iteration frontier: plans from the least makespan to the least total energy, each with a certified gap.

The paper adopts Perseus's iterative algorithm here (section 4.4). This solver answers the same question from below: the
linear program says what no plan can undercut, and rounding its optimum gives a plan made of real points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.pareto import pareto_mask
from kareus.pipeline.exact import least_energy_plan
from kareus.pipeline.problem import Problem
from kareus.pipeline.relaxation import Relaxation
from kareus.pipeline.rounding import TOLERANCE, plan_within


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedIteration:
    """One plan of an iteration frontier."""

    time_s: float
    """Makespan."""
    energy_j: float
    """Of all GPUs over the iteration."""
    deadline_s: float
    """Deadline for which it was solved."""
    lower_bound_j: float
    """Energy that no plan with this makespan or less can undercut."""
    points: tuple[int, ...]
    """Per instruction, the `point` of its microbatch frontier."""

    @property
    def gap(self) -> float:
        """Certified gap to the lower bound, at the plan's own time."""
        return self.energy_j / self.lower_bound_j - 1


def iteration_frontier(problem: Problem, deadlines: int) -> list[PlannedIteration]:
    """Plan for `deadlines` evenly spaced deadlines and keep the plans that no other dominates, by rising time.

    The first deadline is the least makespan there is, and a single one is that; the last is the makespan of the least
    total energy.
    """
    relaxation = Relaxation(problem)
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    frugal_s = max(relaxation.solve(float("inf")).time_s, fastest_s)
    deadlines_s = np.unique(np.linspace(fastest_s, frugal_s, deadlines)).tolist()
    choices = [_plan(problem, relaxation, deadline_s) for deadline_s in deadlines_s]
    choices[0] = least_energy_plan(problem, choices[0], fastest_s)
    costs = np.array([problem.cost(choice) for choice in choices])
    kept = sorted(np.flatnonzero(pareto_mask(costs)), key=lambda n: costs[n, 0])
    return [_planned(problem, relaxation, choices[n], deadlines_s[n]) for n in kept]


def _plan(problem: Problem, relaxation: Relaxation, deadline_s: float) -> list[int]:
    relaxed = relaxation.solve(deadline_s * (1 + TOLERANCE))
    return plan_within(problem, relaxed.times_s, deadline_s)


def _planned(problem: Problem, relaxation: Relaxation, choice: Sequence[int], deadline_s: float) -> PlannedIteration:
    time_s, energy_j = problem.cost(choice)
    bound_j = relaxation.solve(time_s * (1 + TOLERANCE)).energy_j
    return PlannedIteration(
        time_s=time_s,
        energy_j=energy_j,
        deadline_s=deadline_s,
        lower_bound_j=min(bound_j, energy_j),  # an exact plan can lie a rounding error below the computed bound
        points=tuple(points.points[c] for points, c in zip(problem.point_sets, choice, strict=True)),
    )
