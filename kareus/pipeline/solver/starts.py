"""Plans found by beams that the relaxation's optima guide; and the bounds that come with them.

At the least makespan a tighter relaxation gives these: instructions have windows there that few of their points fit,
and the relaxation mixes points on both sides of a window, which no plan can. Here points that do not fit are left out,
and two instructions with nothing between them (forward and backward of the last stage, say) are one: the first has the
pairs of points that fit their common window, the second takes no time.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.beam import Guide, guided_plans
from kareus.pipeline.solver.dag import Dag, earliest_starts, makespan
from kareus.pipeline.solver.lanes import TOLERANCE, Choices
from kareus.pipeline.solver.problem import PointSet, Problem, point_set
from kareus.pipeline.solver.relaxation import Relaxation, Relaxed


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


NOTHING = PointSet((0,), (0.0,), (0.0,))
"""Points of the second of two instructions that are one."""
Key = tuple[int, int, float]
"""Identities of two sets of points, and a window."""


def tightened(problem: Problem) -> Problem:
    """Return a problem with every plan of the least makespan, whose relaxation is never looser there."""
    dag, sets = problem.dag, list(problem.point_sets)
    fastest_s = [points.times_s[0] for points in sets]
    starts_s = earliest_starts(dag, fastest_s)
    # With time running backwards, an instruction starts when the least time that can follow its end has passed.
    rests_s = earliest_starts(dag.mirrored, fastest_s)
    deadline_s = makespan(dag, fastest_s) * (1 + TOLERANCE)
    made: dict[Key, PointSet] = {}
    for first, second in _pairs(dag):
        sent_s = sum(transfer_s for after, transfer_s in dag.successors[first] if after == second)
        window_s = deadline_s - starts_s[first] - rests_s[first if second is None else second] - sent_s
        after = NOTHING if second is None else problem.point_sets[second]
        key = id(problem.point_sets[first]), id(after), window_s
        if key not in made:
            made[key] = _fitting(problem.point_sets[first], after, window_s)
        sets[first] = made[key]
        if second is not None:
            sets[second] = NOTHING
    return replace(problem, point_sets=tuple(sets))


def _pairs(dag: Dag) -> list[tuple[int, int | None]]:
    """Return every instruction with the one that it is one with, or None, each in one pair."""
    pairs: list[tuple[int, int | None]] = []
    taken: set[int] = set()
    for i in dag.order:
        if i not in taken:
            after = [after for after, _ in dag.successors[i]]
            is_pair = len(after) == 1 and len(dag.predecessors[after[0]]) == 1
            pairs.append((i, after[0] if is_pair else None))
            taken |= {i, *after} if is_pair else {i}
    return pairs


def _fitting(first: PointSet, second: PointSet, window_s: float) -> PointSet:
    """Return the pairs of points that take no longer than a window, or the fastest pair where rounding leaves none."""
    times_s = np.add.outer(first.seconds, second.seconds).ravel()
    energies_j = np.add.outer(first.joules, second.joules).ravel()
    fits = times_s <= max(window_s, times_s.min())
    costs = zip(times_s[fits].tolist(), energies_j[fits].tolist(), strict=True)
    return point_set([(n, *cost) for n, cost in enumerate(costs)])
