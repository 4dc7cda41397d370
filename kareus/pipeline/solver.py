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

RESOLUTION = 1e-5
"""Share of the iteration time to which `fastest_within` finds the deadline."""


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
    """Energy that no plan with this makespan or less can undercut; of `cheapest_within`, none within the deadline."""
    points: tuple[int, ...]
    """Per instruction, the `point` of its microbatch frontier."""

    @property
    def gap(self) -> float:
        """Certified gap to the lower bound."""
        return self.energy_j / self.lower_bound_j - 1


def iteration_frontier(problem: Problem, deadlines: int) -> list[PlannedIteration]:
    """Plan for `deadlines` evenly spaced deadlines and keep the plans that no other dominates, by rising time.

    The first deadline is the least makespan there is, and a single one is that; the last is the makespan of the least
    total energy.
    """
    relaxation = Relaxation(problem)
    fastest_s, frugal_s = _range_s(problem, relaxation)
    deadlines_s = np.unique(np.linspace(fastest_s, frugal_s, deadlines)).tolist()
    choices = [_plan(problem, relaxation, deadline_s) for deadline_s in deadlines_s]
    choices[0] = least_energy_plan(problem, choices[0], fastest_s)
    costs = np.array([problem.cost(choice) for choice in choices])
    kept = sorted(np.flatnonzero(pareto_mask(costs)), key=lambda n: costs[n, 0])
    return [_planned(problem, relaxation, choices[n], deadlines_s[n], bound_at_s=costs[n, 0]) for n in kept]


def cheapest_within(problem: Problem, deadline_s: float) -> PlannedIteration:
    """Plan for exactly this deadline, and certify the gap to all plans within it.

    Args:
        problem: what to plan.
        deadline_s: bound on the makespan; at least that of the fastest plan.
    """
    relaxation = Relaxation(problem)
    fastest_s, frugal_s = _range_s(problem, relaxation)
    useful_s = min(deadline_s * (1 - 2 * TOLERANCE), frugal_s)  # in time by every digit; beyond, waiting only costs
    choice = _plan(problem, relaxation, max(useful_s, fastest_s))
    return _planned(problem, relaxation, choice, deadline_s, bound_at_s=deadline_s)


def fastest_within(problem: Problem, energy_j: float, between_s: tuple[float, float]) -> PlannedIteration | None:
    """The fastest plan found that uses at most this energy, by bisection on the deadline; None where there is none.

    Args:
        problem: what to plan.
        energy_j: of all GPUs over the iteration.
        between_s: makespans to search between: at the lower no plan is known to be that frugal, at the upper one is.
    """
    relaxation, best = Relaxation(problem), None
    low_s, high_s = between_s
    while high_s - low_s > RESOLUTION * high_s:
        middle_s = (low_s + high_s) / 2
        choice = _plan(problem, relaxation, middle_s)
        time_s, used_j = problem.cost(choice)
        if used_j <= energy_j:
            best, high_s = _planned(problem, relaxation, choice, middle_s, bound_at_s=time_s), min(time_s, middle_s)
        else:
            low_s = middle_s
    return best


def _range_s(problem: Problem, relaxation: Relaxation) -> tuple[float, float]:
    """The least makespan there is, and that of the least total energy."""
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    return fastest_s, max(relaxation.solve(float("inf")).time_s, fastest_s)


def _plan(problem: Problem, relaxation: Relaxation, deadline_s: float) -> list[int]:
    relaxed = relaxation.solve(deadline_s * (1 + TOLERANCE))
    return plan_within(problem, relaxed.times_s, deadline_s)


def _planned(
    problem: Problem, relaxation: Relaxation, choice: Sequence[int], deadline_s: float, bound_at_s: float
) -> PlannedIteration:
    time_s, energy_j = problem.cost(choice)
    bound_j = relaxation.solve(bound_at_s * (1 + TOLERANCE)).energy_j
    return PlannedIteration(
        time_s=time_s,
        energy_j=energy_j,
        deadline_s=deadline_s,
        lower_bound_j=min(bound_j, energy_j),  # an exact plan can lie a rounding error below the computed bound
        points=tuple(points.points[c] for points, c in zip(problem.point_sets, choice, strict=True)),
    )
