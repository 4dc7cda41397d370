"""Improving plans of short pipelines: all microbatches at once, one kind of instruction gives time to another.

What relaxation and rounding settle on repeats from microbatch to microbatch, and no single instruction can leave it
without making its stage wait for the others.
"""

import itertools

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, energies_in_time_j, mirrored
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.rounding import reclaim

STEPS = ((1, 1), (2, 1), (1, 2))
"""By how many points the one kind gets faster, and the other slower."""


def trade(problem: Problem, choices: Choices, deadlines_s: Array) -> Choices:
    """Make the trade that saves most, if one does.

    Args:
        problem: what to plan.
        choices: plans; shape (instructions, plans).
        deadlines_s: by plan, the bound on its makespan.
    """
    kinds = _kinds(problem)
    common = _is_common(kinds, choices)
    shifts = [
        np.where(common, slower * (kinds == takes) - faster * (kinds == gives), 0)
        for gives, takes in itertools.permutations(range(kinds.max() + 1), 2)
        for faster, slower in STEPS
    ]
    if not shifts:
        return choices
    slowest = np.array([[len(points.times_s) - 1] for points in problem.point_sets])
    trials = np.hstack([np.clip(choices + shift, 0, slowest) for shift in shifts])
    lanes_s = np.tile(deadlines_s, len(shifts))
    traded = [choices, *(reclaim(swept, trials, lanes_s * (1 + TOLERANCE)) for swept in (problem, mirrored(problem)))]
    energies_j = np.hstack([energies_in_time_j(problem, own, np.resize(lanes_s, own.shape[1])) for own in traded])
    best = energies_j.reshape(-1, len(deadlines_s)).argmin(axis=0)
    return np.hstack(traded)[:, best * len(deadlines_s) + np.arange(len(deadlines_s))]


def _kinds(problem: Problem) -> Choices:
    """Number of each instruction's points among all different ones, shape (instructions, 1)."""
    numbers: dict[int, int] = {}
    return np.array([[numbers.setdefault(id(points), len(numbers))] for points in problem.point_sets])


def _is_common(kinds: Choices, choices: Choices) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether an instruction has the point that most of its kind have in that plan, shape (instructions, plans)."""
    common = np.zeros(choices.shape, dtype=np.bool_)
    for kind in range(kinds.max() + 1):
        own = np.flatnonzero(kinds[:, 0] == kind)
        for plan in range(choices.shape[1]):
            common[own, plan] = choices[own, plan] == np.bincount(choices[own, plan]).argmax()
    return common
