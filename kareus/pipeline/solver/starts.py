"""Plans that the local search starts from: the relaxation's optima, rounded; and the bounds that come with them."""

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.lanes import TOLERANCE, Choices
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation, Relaxed
from kareus.pipeline.solver.rounding import round_plans


class Starts:
    """Relaxation and rounding of one problem; every optimum is kept, since each one bounds all plans."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.relaxation = Relaxation(problem)
        self._relaxed: list[Relaxed] = []
        self._frugal_s: float | None = None

    def range_s(self) -> tuple[float, float]:
        """Return the least makespan of any plan, and the makespan of the least total energy."""
        own = self.relaxation
        if self._frugal_s is None:
            cheapest = own.solve(own.slowest_s)
            self._frugal_s = max(cheapest.time_s, own.makespan_at_points(cheapest), own.fastest_s)
        return own.fastest_s, self._frugal_s

    def plans(self, deadlines_s: Array) -> Choices:
        """Return a plan for each of rising deadlines in seconds; shape (instructions, deadlines).

        Raises:
            ValueError: No plan keeps one of the deadlines.
            ArtifactError: HiGHS finds no optimum.
        """
        # From the latest to the earliest: starting each from the one before is a tenth faster that way than the other.
        relaxed = [self.relaxation.solve(deadline_s * (1 + TOLERANCE)) for deadline_s in deadlines_s[::-1]][::-1]
        self._relaxed += relaxed
        return round_plans(self.problem, np.column_stack([solved.times_s for solved in relaxed]), deadlines_s)

    def bound_j(self, time_s: float) -> float:
        """Return the energy that no plan with this makespan or less undercuts; tight where `plans` was called."""
        return max(solved.bound_j(time_s * (1 + TOLERANCE)) for solved in self._relaxed)
