"""From the relaxation to plans: every instruction gets a real point, and the makespan stays within the deadline.

The relaxation says when each instruction should end. Going through the instructions in order of dependency, each takes
the slowest real point that ends about then, so that what one loses or gains by rounding is made up by the next ones.
How late one may end, and whether one goes forwards or backwards through time, makes several plans of each deadline;
slack that is left in them is reclaimed, and the cheapest is kept. All of them are made at once.
"""

import numpy as np

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.lanes import (
    TOLERANCE,
    Choices,
    energies_in_time_j,
    latest_ends,
    mirrored,
    parts,
    slowest_within,
    sweep,
    times_s,
)
from kareus.pipeline.solver.problem import Problem

SNAP = 1e-9
"""Share of the deadline within which the relaxation, solved to HiGHS' tolerances, means a real point.

Without it the mean gap is the same but for noise, and single plans are up to 0.12 points dearer.
"""
LATENESS = np.array([0.0, *np.linspace(0.0, 1.0, 26)])
"""Shares of a step by which instructions may end later than in the relaxation.

With half as many, the mean gap is up to 0.002 points wider.
"""
MARGIN = np.array([-TOLERANCE, *np.full(len(LATENESS) - 1, TOLERANCE)])
"""Share of the deadline that is added to it: the first plan is in time for certain, the others may use all of it."""


def round_plans(problem: Problem, relaxed_s: Array, deadlines_s: Array) -> Choices:
    """Choose a point for every instruction, near its relaxed time, so that each deadline is kept.

    Args:
        problem: what to plan.
        relaxed_s: seconds of each instruction in the relaxation's optimum; shape (instructions, deadlines).
        deadlines_s: bounds on the makespan; none is below the makespan of the fastest plan.

    Returns:
        One plan for each deadline; shape (instructions, deadlines).
    """
    own = parts(len(deadlines_s), 2 * len(relaxed_s) * len(LATENESS))  # rounded forwards and backwards
    return np.hstack([_cheapest(problem, relaxed_s[:, part], deadlines_s[part]) for part in own])


def reclaim(problem: Problem, choices: Choices, deadlines_s: Array, held: Indices | None = None) -> Choices:
    """Slow instructions into the slack around them, in order of dependency, until no single one can be slowed.

    Args:
        problem: The instructions and their points.
        choices: Plans, shape (instructions, plans); where one misses its deadline, instructions are sped up, and slack
            may be left.
        deadlines_s: By plan, the bound on its makespan; at least that of the fastest plan.
        held: By plan, an instruction that keeps its point, or a negative number for none.
    """
    ends_s = latest_ends(problem.dag, times_s(problem, choices), deadlines_s)

    def pick(members: Indices, start_s: Array) -> Choices:
        slowest = slowest_within(problem, members, ends_s[members] - start_s)
        return slowest if held is None else np.where(held == members[:, np.newaxis], choices[members], slowest)

    return sweep(problem, len(deadlines_s), pick)


def _cheapest(problem: Problem, relaxed_s: Array, deadlines_s: Array) -> Choices:
    """The cheapest plan of each deadline, of all that are tried."""
    ways = (problem, mirrored(problem))
    rounded = np.hstack([_rounded(way, relaxed_s, deadlines_s) for way in ways])
    lanes_s = np.tile((deadlines_s[:, np.newaxis] * (1 + MARGIN)).ravel(), len(ways))
    limits_s = np.tile(deadlines_s.repeat(len(LATENESS)), len(ways))
    plans, costs_j = [], []
    for way in ways:  # each reclaims what either has rounded, for which one pass through time does
        reclaimed = reclaim(way, rounded, lanes_s)
        costs_j.append(energies_in_time_j(problem, reclaimed, limits_s).reshape(len(ways), len(deadlines_s), -1))
        plans.append(reclaimed.reshape(len(reclaimed), len(ways), len(deadlines_s), -1))
    # By deadline, those of one rounding after the other: of equal costs the first counts.
    best = np.stack(costs_j, axis=2).swapaxes(0, 1).reshape(len(deadlines_s), -1).argmin(axis=1)
    rounding, reclaiming, lateness = np.unravel_index(best, (len(ways), len(ways), len(LATENESS)))
    every = np.stack(plans)
    return np.ascontiguousarray(every[reclaiming, :, rounding, np.arange(len(deadlines_s)), lateness].T)


def _rounded(problem: Problem, relaxed_s: Array, deadlines_s: Array) -> Choices:
    """Go through time once, each instruction ending about when it does in the relaxation, if as late as it can."""
    lateness = np.tile(LATENESS, len(deadlines_s))
    fastest_s = np.array([[points.times_s[0]] for points in problem.point_sets]).repeat(len(deadlines_s), axis=1)
    limits_s = latest_ends(problem.dag, fastest_s, deadlines_s)
    ends_s = np.minimum(latest_ends(problem.dag, relaxed_s, deadlines_s * (1 + SNAP)), limits_s)
    limits_s, ends_s = (
        (each[:, :, np.newaxis] + deadlines_s[:, np.newaxis] * MARGIN).reshape(len(relaxed_s), -1)
        for each in (limits_s, ends_s)
    )

    points = problem.table

    def pick(members: Indices, start_s: Array) -> Choices:
        window_s, first = ends_s[members] - start_s, points.first[members]
        chosen = slowest_within(problem, members, window_s)
        slower = np.minimum(chosen + 1, points.slowest[members])
        slower_s = points.seconds.take(first + slower)
        almost = slower_s - window_s <= lateness * (slower_s - points.seconds.take(first + chosen))
        return np.where(almost & (slower_s <= limits_s[members] - start_s), slower, chosen)

    return sweep(problem, len(lateness), pick)
