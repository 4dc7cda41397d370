"""Descent: the acceptance rule of the local search, which is the same for all neighbourhoods.

A move changes a few points of a plan, and all other instructions adapt: each runs as slow as those around it allow. Of
all moves of a plan the one that then costs least is made, if it costs less than the plan by more than rounding errors.
"""

import numpy as np

from kareus.arrays import Array
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, energies_in_time_j, mirrored, parts
from kareus.pipeline.solver.local_search.moves import Neighbourhood
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.rounding import reclaim


def descend(problem: Problem, choices: Choices, deadlines_s: Array, neighbourhood: Neighbourhood) -> Choices:
    """Make the best move of every plan, again and again, until none saves anything or its steps are used up.

    Args:
        problem: The instructions and their points.
        choices: Plans to improve; shape (instructions, plans).
        deadlines_s: Bounds on their makespans; shape (plans,).
        neighbourhood: The moves.

    Returns:
        One plan for each of `choices`, never dearer, and within its deadline if that one was; the same shape.
    """
    choices = choices.copy()
    improving = np.arange(len(deadlines_s))  # the plans that the last step made cheaper
    for _ in range(neighbourhood.steps):
        before, limits_s = choices[:, improving], deadlines_s[improving]
        moved = before.copy()
        for part in parts(len(improving), len(choices) * neighbourhood.moves_each):
            moved[:, part] = _moved(problem, before[:, part], limits_s[part], neighbourhood)
        choices[:, improving] = moved
        improving = improving[(moved != before).any(axis=0)]
        if not len(improving):
            break
    return choices


def _moved(problem: Problem, choices: Choices, deadlines_s: Array, neighbourhood: Neighbourhood) -> Choices:
    """Make the move of every plan that saves most, if any saves more than rounding errors."""
    moves = neighbourhood.moves(choices, deadlines_s)
    limits_s = deadlines_s[moves.plans]
    best, best_j = choices.copy(), energies_in_time_j(problem, choices, deadlines_s)
    # Instructions adapt in order of dependency, once from the first to the last and once from the last to the first.
    for swept in (problem, mirrored(problem)):
        adapted = reclaim(swept, moves.choices, limits_s * (1 + TOLERANCE), held=moves.held)
        energies_j = energies_in_time_j(problem, adapted, limits_s)

        # Sorted by plan, then by energy, the first move of each plan is its cheapest.
        order = np.lexsort((energies_j, moves.plans))
        plans, first = np.unique(moves.plans[order], return_index=True)
        cheapest = order[first]

        saves = energies_j[cheapest] < best_j[plans] * (1 - TOLERANCE)
        plans, cheapest = plans[saves], cheapest[saves]
        best[:, plans], best_j[plans] = adapted[:, cheapest], energies_j[cheapest]
    return best
