"""Splices: one plan up to some moment of the iteration, another one from there on.

Where the optimum of the relaxation lies between two points in every microbatch, rounding takes the one in some
microbatches and the other in the rest. Stages get out of step, and what one of them gains the next ones spend waiting.
The optimum for a deadline nearby may be at one of the two points throughout. Every path through the pipeline passes
each moment once, so a plan that changes over from one of these to the other has about the weighted mean of their
makespans, and of their energies.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, earliest_starts_s, times_s
from kareus.pipeline.solver.local_search.moves import FREE, Moves, Neighbourhood
from kareus.pipeline.solver.problem import Problem

REACH = 3
"""Number of faster plans, and of slower ones, that are spliced for a deadline: those with the nearest makespans.

With 1 the mean gap is hardly narrower than without splices; with 2, it is 0.001 to 0.003 points wider; with 6, 0.001
points narrower.
"""
SHIFTS = (-0.01, 0.0, 0.01)
"""Shares of the iteration by which the change comes earlier or later than where the mean meets the deadline.

With no shift but 0 the mean gap is up to 0.002 points wider, that of single plans up to 0.07 points.
"""


def splices(problem: Problem, sources: Choices) -> Neighbourhood:
    """Return the splices of two of some plans, `sources` of shape (instructions, plans)."""
    seconds = times_s(problem, sources)
    starts_s = earliest_starts_s(problem, seconds)
    makespans_s = (starts_s + seconds).max(axis=0)
    by_time = makespans_s.argsort(kind="stable")
    timed = _Timed(
        choices=sources[:, by_time],
        middles_s=(starts_s + seconds / 2)[:, by_time],
        makespans_s=makespans_s[by_time],
    )
    return Neighbourhood(moves=partial(_moves, timed), moves_each=2 * REACH**2 * len(SHIFTS), steps=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Plans by rising makespan."""

    choices: Choices
    """Shape (instructions, plans)."""
    middles_s: Array
    """Middle of every instruction when each starts as early as it can; shape (instructions, plans)."""
    makespans_s: Array
    """Shape (plans,)."""


def _moves(sources: _Timed, _: Choices, deadlines_s: Array) -> Moves:
    """Return a move for each faster and slower source, in both orders, and each shift between them."""
    plans, first, second, share = _combinations(sources.makespans_s, deadlines_s)
    # An instruction runs before the change if its middle does in the first source.
    is_first = sources.middles_s[:, first] < share * sources.makespans_s[first]
    spliced = np.where(is_first, sources.choices[:, first], sources.choices[:, second])
    return Moves(choices=spliced, plans=plans, held=np.full(len(plans), FREE))


def _combinations(makespans_s: Array, deadlines_s: Array) -> tuple[Indices, Indices, Indices, Array]:
    """Choose what to splice.

    Args:
        makespans_s: Rising makespans of the sources; shape (sources,).
        deadlines_s: Shape (plans,).

    Returns:
        By move: index of the plan to replace, of the source before the change and of the one after it, and the share
        of the first one's makespan at which the change comes; each of shape (moves,).
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
