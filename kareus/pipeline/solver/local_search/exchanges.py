"""Exchanges: one instruction gets one point faster or slower, and all others take or give the time."""

from functools import partial

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.lanes import Choices
from kareus.pipeline.solver.local_search.moves import Moves, Neighbourhood
from kareus.pipeline.solver.problem import Problem

EFFORT = 70_000
"""Number of instructions times exchanges that are tried on one plan.

Half of it widens the mean gap of pipelines of 65 to 187 instructions by 0.003 points; twice as much narrows it by as
much and takes 1.4 times as long.
"""


def exchanges(problem: Problem) -> Neighbourhood:
    """Return the exchanges of a problem; with more than 187 instructions, the effort does not last for a step."""
    count = len(problem.point_sets)
    return Neighbourhood(moves=partial(_moves, problem), moves_each=2 * count, steps=EFFORT // (2 * count**2))


def _moves(problem: Problem, choices: Choices, deadlines_s: Array) -> Moves:
    """Return two moves for every instruction of every plan."""
    count, plans = len(choices), len(deadlines_s)
    moves_each = 2 * count
    slowest = np.array([len(points.times_s) - 1 for points in problem.point_sets])

    # The moves of one plan stand next to each other: instruction 0 faster, 0 slower, 1 faster, 1 slower, and so on.
    held = np.tile(np.arange(count).repeat(2), plans)
    step = np.tile([-1, 1], count * plans)
    move = np.arange(plans * moves_each)

    trials = choices.repeat(moves_each, axis=1)
    trials[held, move] = np.clip(trials[held, move] + step, 0, slowest[held])
    return Moves(choices=trials, plans=np.arange(plans).repeat(moves_each), held=held)
