"""Entry point of the local search: which neighbourhoods a problem gets, in which order, and which moves it makes."""

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.exact import MOST_INSTRUCTIONS
from kareus.pipeline.solver.lanes import Choices, energies_in_time_j
from kareus.pipeline.solver.local_search.descent import descend
from kareus.pipeline.solver.local_search.exchanges import exchanges
from kareus.pipeline.solver.local_search.splices import splices
from kareus.pipeline.solver.local_search.trades import trades
from kareus.pipeline.solver.starts import Starts

EARLIER = (0.0, 0.001)
"""Shares by which the starts of short pipelines aim earlier than the deadline: close by, fewer may be fractions.

Without the second start, the mean gap is 0.004 points wider; half or twice its share changes nothing.
"""
WIDE = 0.001
"""Gap above which the plans of long pipelines are spliced.

Half of it narrows the mean gap by less than 0.001 points; twice as much widens it by 0.003 to 0.007.
"""
NEARBY = (0.996, 1.004)
"""Deadlines, as shares of one whose gap is wide, that plans to splice are made for.

Without these plans, the mean gap is 0.002 to 0.004 points wider; half or twice the distance stays within 0.002 points.
"""


def search(starts: Starts, deadlines_s: Array) -> Choices:
    """Return a plan for each of rising deadlines in seconds, (deadlines,); shape (instructions, deadlines).

    Raises:
        ValueError: No plan keeps one of the deadlines.
        ArtifactError: HiGHS finds no optimum.
    """
    is_short = len(starts.problem.point_sets) <= MOST_INSTRUCTIONS
    return _search_short(starts, deadlines_s) if is_short else _search_long(starts, deadlines_s)


def _search_short(starts: Starts, deadlines_s: Array) -> Choices:
    """Improve several starts of each deadline by exchanges, and the cheapest result by a trade."""
    problem, fastest_s = starts.problem, starts.relaxation.fastest_s
    choices = np.hstack([starts.plans(np.maximum(deadlines_s * (1 - share), fastest_s)) for share in EARLIER])
    limits_s = np.tile(deadlines_s, len(EARLIER))
    choices = descend(problem, choices, limits_s, exchanges(problem))

    # One row of energies for each start; column `start * deadlines + deadline` of `choices` is that start's plan.
    energies_j = energies_in_time_j(problem, choices, limits_s).reshape(len(EARLIER), -1)
    cheapest = energies_j.argmin(axis=0) * len(deadlines_s) + np.arange(len(deadlines_s))
    return descend(problem, choices[:, cheapest], deadlines_s, trades(problem))


def _search_long(starts: Starts, deadlines_s: Array) -> Choices:
    """Improve the plans with wide gaps by splices, and all of them by as many exchanges as the effort allows."""
    problem, choices = starts.problem, starts.plans(deadlines_s)
    bounds_j = np.array([starts.bound_j(deadline_s) for deadline_s in deadlines_s])
    is_wide = energies_in_time_j(problem, choices, deadlines_s) > bounds_j * (1 + WIDE)
    if is_wide.any():
        nearby_s = np.unique(np.clip(np.outer(deadlines_s[is_wide], NEARBY), *starts.range_s()))
        splicing = splices(problem, np.hstack([choices, starts.plans(nearby_s)]))
        choices[:, is_wide] = descend(problem, choices[:, is_wide], deadlines_s[is_wide], splicing)
    return descend(problem, choices, deadlines_s, exchanges(problem))
