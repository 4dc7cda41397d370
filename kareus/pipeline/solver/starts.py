"""Plans found by beams that the relaxation's optima guide; and the bounds that come with them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.beam import Guide, guided_plans
from kareus.pipeline.solver.lanes import TOLERANCE, Choices
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation, Relaxed
from kareus.pipeline.solver.tight import tightened


class Starts:
    """Relaxation and beams of one problem; every optimum is kept, since each one bounds all plans."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.relaxation = Relaxation(problem)
        self._relaxed: dict[float, Relaxed] = {}
        """By deadline."""
        self._frugal_s: float | None = None

    def range_s(self) -> tuple[float, float]:
        """Return the least makespan of any plan, and the makespan of the least total energy."""
        relaxed = self.relaxation
        if self._frugal_s is None:
            cheapest = relaxed.solve(relaxed.slowest_s)
            self._frugal_s = max(cheapest.time_s, relaxed.makespan_at_points(cheapest), relaxed.fastest_s)
        return relaxed.fastest_s, self._frugal_s

    def plans(self, deadlines_s: Array, *, depth_first: bool = False) -> Choices:
        """Return a plan for each of rising deadlines in seconds; shape (instructions, deadlines).

        Args:
            deadlines_s: bounds on the makespan.
            depth_first: go through instructions in the other order of dependency, which makes other plans.

        Raises:
            ValueError: No plan keeps one of the deadlines.
            ArtifactError: HiGHS finds no optimum.
        """
        # From the latest to the earliest: starting each from the one before is a tenth faster that way than the other.
        relaxed = [self._solved(deadline_s) for deadline_s in deadlines_s[::-1].tolist()][::-1]
        problem = replace(self.problem, dag=self.problem.dag.depth_first) if depth_first else self.problem
        return guided_plans(problem, self._guide(relaxed), deadlines_s)

    def bound_j(self, time_s: float) -> float:
        """Return the energy that no plan with this makespan or less undercuts; tight where `plans` was called."""
        allowed_s = time_s * (1 + TOLERANCE)
        bound_j = max(solved.bound_j(allowed_s) for solved in self._relaxed.values())
        return bound_j if time_s > self.relaxation.fastest_s else max(bound_j, self._fastest_bound_j)

    def worth_w(self, deadline_s: float) -> Array:
        """Return the joules that a second of each instruction is worth within a deadline; shape (instructions,)."""
        worth_w: Array = self._guide([self._solved(deadline_s)]).worth_w[:, 0]
        return worth_w

    def _solved(self, deadline_s: float) -> Relaxed:
        """Return the optimum of the relaxation for a deadline."""
        if deadline_s not in self._relaxed:
            self._relaxed[deadline_s] = self.relaxation.solve(deadline_s * (1 + TOLERANCE))
        return self._relaxed[deadline_s]

    @cached_property
    def _fastest_bound_j(self) -> float:
        """Energy that no plan of the least makespan undercuts."""
        return Relaxation(tightened(self.problem)).solve(self.relaxation.fastest_s * (1 + TOLERANCE)).energy_j

    def _guide(self, relaxed: Sequence[Relaxed]) -> Guide:
        """Return what optima say, by deadline in the last axis."""
        count, edges = len(self.problem.point_sets), self.relaxation.edges
        prices_w = np.column_stack([solved.prices_w for solved in relaxed])
        ends = [number for number, (_, after) in enumerate(edges) if after == count]
        worth_w = np.zeros((count, len(relaxed)))
        np.add.at(worth_w, [before for before, _ in edges], prices_w)
        return Guide(
            seconds=np.column_stack([solved.times_s for solved in relaxed]),
            prices_w=dict(zip(edges, prices_w, strict=True)),
            worth_w=worth_w,
            deadline_w=prices_w[ends].sum(axis=0),
        )
