"""Improving plans of short pipelines: one instruction is moved by one step, and all others adapt to it."""

import numpy as np

from kareus.arrays import Array
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

EFFORT = 70_000
"""Instructions times moves that are tried on one plan. Long pipelines, whose gaps are small anyway, get none."""


def exchange(problem: Problem, choices: Choices, deadlines_s: Array) -> Choices:
    """Make the move that saves most, again and again, until none saves anything or the effort is spent.

    Args:
        problem: what to plan.
        choices: plans; shape (instructions, plans).
        deadlines_s: by plan, the bound on its makespan.
    """
    cells = 2 * len(choices) ** 2
    choices, improving = choices.copy(), np.arange(len(deadlines_s))
    for _ in range(EFFORT // cells):
        own = [improving[part] for part in parts(len(improving), cells)]
        moved = np.hstack([_best_move(problem, choices[:, plans], deadlines_s[plans]) for plans in own])
        changed = (moved != choices[:, improving]).any(axis=0)
        choices[:, improving] = moved
        improving = improving[changed]
        if not len(improving):
            break
    return choices


def _best_move(problem: Problem, choices: Choices, deadlines_s: Array) -> Choices:
    """Every plan after the move that saves most, or as it is."""
    count, plans = choices.shape
    moves = 2 * count
    moving, lane = np.tile(np.arange(count).repeat(2), plans), np.arange(plans * moves)
    slowest = np.array([len(points.times_s) - 1 for points in problem.point_sets])
    trials = choices.repeat(moves, axis=1)
    trials[moving, lane] = np.clip(trials[moving, lane] + np.tile([-1, 1], count * plans), 0, slowest[moving])
    lanes_s = deadlines_s.repeat(moves)
    best, best_j = choices, energies_in_time_j(problem, choices, deadlines_s)
    for swept in (problem, mirrored(problem)):
        adapted = _adapted(swept, trials, moving, lanes_s)
        energies_j = energies_in_time_j(problem, adapted, lanes_s).reshape(plans, moves)
        cheapest = energies_j.argmin(axis=1) + np.arange(plans) * moves
        saves = energies_j.min(axis=1) < best_j * (1 - TOLERANCE)
        best = np.where(saves, adapted[:, cheapest], best)
        best_j = np.minimum(best_j, energies_j.min(axis=1))
    return best


def _adapted(problem: Problem, trials: Choices, moving: Choices, deadlines_s: Array) -> Choices:
    """All instructions but the moving one of each lane as slow as those around them allow."""
    ends_s = latest_ends(problem.dag, times_s(problem, trials), deadlines_s * (1 + TOLERANCE))

    def pick(i: int, start_s: Array) -> Choices:
        return np.where(moving == i, trials[i], slowest_within(problem.point_sets[i], ends_s[i] - start_s))

    return sweep(problem, len(deadlines_s), pick)
