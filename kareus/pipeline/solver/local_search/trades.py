"""Trades: in all microbatches at once, one kind of instruction gets faster and another one slower.

The plans of relaxation and rounding repeat from microbatch to microbatch. An exchange cannot leave such a pattern: a
single instruction that differs makes its stage wait for the others.
"""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.lanes import Choices
from kareus.pipeline.solver.local_search.moves import FREE, Moves, Neighbourhood
from kareus.pipeline.solver.problem import Problem

STEPS = ((1, 1), (2, 1))
"""Number of points by which one kind gets faster, and by which the other gets slower.

Without the first pair, the mean gap is 0.0001 to 0.0002 points wider; without the second one, 0.0003 to 0.0006 points.
"""


def trades(problem: Problem) -> Neighbourhood:
    """Return the trades between every two kinds of a problem's instructions: those with the same point set."""
    kinds = _kinds(problem)
    pairs = list(itertools.permutations(range(kinds.max() + 1), 2))
    moves_each = len(pairs) * len(STEPS)
    return Neighbourhood(
        moves=partial(_moves, problem, kinds, pairs), moves_each=moves_each, steps=1 if moves_each else 0
    )


def _moves(
    problem: Problem, kinds: Indices, pairs: Sequence[tuple[int, int]], choices: Choices, deadlines_s: Array
) -> Moves:
    """Return a move of every plan for each pair of (kind that gives time, kind that takes it) and each of `STEPS`."""
    kind_of, usual = kinds[:, np.newaxis], _is_usual(kinds, choices)
    slowest = np.array([[len(points.times_s) - 1] for points in problem.point_sets])

    # Instructions that differ from the rest of their kind make up for rounding: they adapt, but do not move.
    shifts = [
        np.where(usual, slower * (kind_of == takes) - faster * (kind_of == gives), 0)
        for gives, takes in pairs
        for faster, slower in STEPS
    ]
    trials = np.hstack([np.clip(choices + shift, 0, slowest) for shift in shifts])
    plans = np.tile(np.arange(len(deadlines_s)), len(shifts))
    return Moves(choices=trials, plans=plans, held=np.full(len(plans), FREE))


def _kinds(problem: Problem) -> Indices:
    """Return the number of each instruction's kind, counted from 0; shape (instructions,)."""
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(id(points), len(numbers)) for points in problem.point_sets])


def _is_usual(kinds: Indices, choices: Choices) -> NDArray[np.bool_]:
    """Tell which instructions have the point that most of their kind have in that plan; shape of `choices`."""
    usual = np.zeros(choices.shape, dtype=np.bool_)
    for kind in range(kinds.max() + 1):
        own = np.flatnonzero(kinds == kind)
        for plan in range(choices.shape[1]):
            most_frequent = np.bincount(choices[own, plan]).argmax()
            usual[own, plan] = choices[own, plan] == most_frequent
    return usual
