"""A tighter relaxation at the least makespan, where instructions have windows that few of their points fit.

The relaxation mixes points on both sides of a window, which no plan can. Here points that do not fit are left out, and
two instructions with nothing between them (forward and backward of the last stage, say) are one: the first has the
pairs of points that fit their common window, the second takes no time.
"""

from dataclasses import replace

import numpy as np

from kareus.pipeline.solver.dag import Dag, earliest_starts, makespan
from kareus.pipeline.solver.lanes import TOLERANCE
from kareus.pipeline.solver.problem import PointSet, Problem, point_set

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
