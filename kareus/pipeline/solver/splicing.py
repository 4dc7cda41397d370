"""Improving plans with wide gaps: one plan up to some moment of the iteration, another one from there on.

Where the relaxation wants something between two points of every microbatch, rounding chooses now the one and now the
other, stages get out of step, and what one of them gains the next ones wait for. At deadlines nearby the relaxation may
want one of the two throughout. Every path through the pipeline passes any moment once, so a plan that changes over from
one of these to the other takes about as long, and costs about as much, as their mean.
"""

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.lanes import (
    TOLERANCE,
    Choices,
    earliest_starts_s,
    energies_in_time_j,
    mirrored,
    parts,
    times_s,
)
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.rounding import reclaim

REACH = 3
"""Plans on either side of a deadline that are spliced."""
SHIFTS = (-0.01, 0.0, 0.01)
"""Shares of the iteration by which the change comes earlier or later than where the mean meets the deadline."""


def splice(problem: Problem, choices: Choices, plans: Choices, deadlines_s: Array) -> Choices:
    """Improve plans by others of deadlines nearby.

    Args:
        problem: what to plan.
        choices: plans to improve, each in time; shape (instructions, deadlines).
        plans: others to splice them from; shape (instructions, plans).
        deadlines_s: of `choices`.

    Returns:
        For each deadline the cheapest plan found, `choices` included; shape (instructions, deadlines).
    """
    sources = np.hstack([choices, plans])
    middles_s, makespans_s = _when(problem, sources)
    target, first, second, share = _combinations(makespans_s, deadlines_s)
    best, best_j = choices.copy(), energies_in_time_j(problem, choices, deadlines_s)
    for part in parts(len(target), len(choices)):
        one, other, lanes_s = first[part], second[part], deadlines_s[target[part]]
        is_first = middles_s[:, one] < share[part] * makespans_s[one]
        spliced = np.where(is_first, sources[:, one], sources[:, other])
        for swept in (problem, mirrored(problem)):
            reclaimed = reclaim(swept, spliced, lanes_s)
            energies_j = energies_in_time_j(problem, reclaimed, lanes_s)
            for own in np.unique(target[part]):
                lanes = np.flatnonzero(target[part] == own)
                cheapest = lanes[energies_j[lanes].argmin()]
                if energies_j[cheapest] < best_j[own]:
                    best[:, own], best_j[own] = reclaimed[:, cheapest], energies_j[cheapest]
    return best


def _when(problem: Problem, choices: Choices) -> tuple[Array, Array]:
    """The middle of every instruction, started as soon as it can, and the makespan of every plan."""
    seconds = times_s(problem, choices)
    starts_s = earliest_starts_s(problem, seconds)
    return starts_s + seconds / 2, (starts_s + seconds).max(axis=0)


def _combinations(makespans_s: Array, deadlines_s: Array) -> tuple[Choices, Choices, Choices, Array]:
    """What to splice: for which deadline, the plan before and after the change, and the share of time before it."""
    rows: list[tuple[int, int, int, float]] = []
    by_time = makespans_s.argsort(kind="stable")
    for target, deadline_s in enumerate(deadlines_s):
        place = int(makespans_s[by_time].searchsorted(deadline_s * (1 + TOLERANCE)))
        faster, slower = by_time[max(place - REACH, 0) : place], by_time[place : place + REACH]
        for early in faster:
            for late in slower:
                mean = (makespans_s[late] - deadline_s) / (makespans_s[late] - makespans_s[early])
                for share in np.clip(mean + np.array(SHIFTS), 0.0, 1.0):
                    rows += [(target, early, late, share), (target, late, early, 1 - share)]
    columns = np.array(rows).reshape(-1, 4).T
    target, first, second = columns[:3].astype(np.int64)
    return target, first, second, columns[3]
