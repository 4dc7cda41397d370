"""Splices: one plan up to some moment of the iteration, another one from there on.

Where the optimum of the relaxation lies between two points in every microbatch, rounding takes the one in some
microbatches and the other in the rest. Stages get out of step, and what one of them gains the next ones spend waiting.
The optimum for a deadline nearby may be at one of the two points throughout. Every path through the pipeline passes
each moment once, so a plan that changes over from one of these to the other has about the weighted mean of their
makespans, and of their energies.
"""

from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.dag import earliest_starts_s
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, energies_in_time_j, mirrored, parts, reclaim, times_s
from kareus.pipeline.solver.problem import Problem

REACH = 3
"""Number of faster plans, and of slower ones, that are spliced for a deadline: those with the nearest makespans."""
SHIFTS = (-0.01, 0.0, 0.01)
"""Shares of the iteration by which the change comes earlier or later than where the mean meets the deadline."""


def spliced(problem: Problem, choices: Choices, deadlines_s: Array, sources: Choices) -> Choices:
    """Replace each plan by the cheapest splice of two others within its deadline, or keep it if none is cheaper.

    Args:
        problem: what to plan.
        choices: plans to replace; shape (instructions, plans), as what is returned.
        deadlines_s: bounds on their makespans; shape (plans,).
        sources: plans to splice; shape (instructions, sources).
    """
    timed, count = _timed(problem, sources), len(choices)
    at_once = parts(len(deadlines_s), count * 2 * REACH**2 * len(SHIFTS))
    return np.hstack([_cheapest(problem, choices[:, part], deadlines_s[part], timed) for part in at_once])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Plans by rising makespan."""

    choices: Choices
    """Shape (instructions, plans)."""
    middles_s: Array
    """Middle of every instruction when each starts as early as it can; shape (instructions, plans)."""
    makespans_s: Array
    """Shape (plans,)."""


def _timed(problem: Problem, sources: Choices) -> _Timed:
    seconds = times_s(problem, sources)
    starts_s = earliest_starts_s(problem.dag, seconds)
    makespans_s = (starts_s + seconds).max(axis=0)
    by_time = makespans_s.argsort(kind="stable")
    return _Timed(
        choices=sources[:, by_time],
        middles_s=(starts_s + seconds / 2)[:, by_time],
        makespans_s=makespans_s[by_time],
    )


def _cheapest(problem: Problem, choices: Choices, deadlines_s: Array, sources: _Timed) -> Choices:
    """The cheaper of each plan and the best splice of sources for its deadline."""
    plans, first, second, share = _combinations(sources.makespans_s, deadlines_s)
    # An instruction runs before the change if its middle does in the first source.
    is_first = sources.middles_s[:, first] < share * sources.makespans_s[first]
    trials = np.where(is_first, sources.choices[:, first], sources.choices[:, second])
    limits_s = deadlines_s[plans]
    # Instructions adapt in order of dependency, once from the first to the last and once from the last to the first.
    ways = (problem, mirrored(problem))
    adapted = [reclaim(way, trials, limits_s * (1 + TOLERANCE)) for way in ways]
    every = np.hstack([choices, *adapted])
    owners = np.concatenate([np.arange(len(deadlines_s)), *[plans] * len(ways)])
    costs_j = energies_in_time_j(problem, every, deadlines_s[owners])
    order = np.lexsort((costs_j, owners))
    return every[:, order[np.unique(owners[order], return_index=True)[1]]]


def _combinations(makespans_s: Array, deadlines_s: Array) -> tuple[Indices, Indices, Indices, Array]:
    """Choose what to splice.

    Args:
        makespans_s: Rising makespans of the sources; shape (sources,).
        deadlines_s: Shape (plans,).

    Returns:
        By splice: index of the plan to replace, of the source before the change and of the one after it, and the share
        of the first one's makespan at which the change comes; each of shape (splices,).
    """
    rows: list[tuple[int, int, int, float]] = []
    for plan, deadline_s in enumerate(deadlines_s):
        place = int(makespans_s.searchsorted(deadline_s * (1 + TOLERANCE)))
        faster = range(max(place - REACH, 0), place)
        slower = range(place, min(place + REACH, len(makespans_s)))
        for early in faster:
            for late in slower:
                # share x early + (1 - share) x late = deadline
                mean = (makespans_s[late] - deadline_s) / (makespans_s[late] - makespans_s[early])
                for share in np.clip(mean + np.array(SHIFTS), 0.0, 1.0):
                    rows += [(plan, early, late, share), (plan, late, early, 1 - share)]
    columns = np.array(rows).reshape(-1, 4).T
    plans, first, second = columns[:3].astype(np.int64)
    return plans, first, second, columns[3]
