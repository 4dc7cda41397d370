"""Timing and cost of many plans of one problem at once, each in a lane of its own.

Whatever belongs to a plan is an array of shape (instructions, lanes). The loops run over waves of instructions in order
of dependency and do all lanes in one NumPy call, which makes hundreds of plans cost little more than one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices
from kareus.pipeline.iteration import iteration_costs
from kareus.pipeline.solver.dag import latest_ends
from kareus.pipeline.solver.problem import Problem

Choices = NDArray[np.int64]
"""Index into the point set of each instruction; shape (instructions, lanes)."""
Pick = Callable[[Indices, Array], Choices]
"""Of instructions and their starts in every lane, what they run at there; shape (instructions, lanes)."""
TOLERANCE = 1e-11
"""Share of a deadline, or of an energy, by which sums of floats may differ."""
CELLS = 1_000_000
"""Instructions times lanes that are worked on at once: 8 MB an array."""


def parts(plans: int, cells_each: int) -> Iterator[slice]:
    """Cut a number of plans into parts that are worked on at once."""
    at_once = max(1, CELLS // cells_each)
    return (slice(n, n + at_once) for n in range(0, plans, at_once))


def mirrored(problem: Problem) -> Problem:
    """The same problem with time running backwards: every plan takes as long and costs as much."""
    return replace(problem, dag=problem.dag.mirrored)


def sweep(problem: Problem, lanes: int, pick: Pick) -> Choices:
    """Go through the instructions in order of dependency, starting each as soon as it can and letting `pick` choose."""
    choices = np.empty((len(problem.point_sets), lanes), dtype=np.int64)
    ends_s = np.full((len(choices) + 1, lanes), -np.inf)  # the last is that of no instruction
    points = problem.table
    for wave in problem.dag.waves:
        start_s = np.zeros((len(wave.members), lanes))
        for before, transfer_s in wave.before:
            received_s = ends_s.take(before, axis=0)
            received_s += transfer_s
            np.maximum(start_s, received_s, out=start_s)
        chosen = pick(wave.members, start_s)
        choices[wave.members] = chosen
        start_s += points.seconds.take(points.first[wave.members] + chosen)
        ends_s[wave.members] = start_s
    return choices


def slowest_within(problem: Problem, members: Indices, windows_s: Array) -> Choices:
    """The slowest point of each member that takes no longer than its window, or the fastest if none is that fast.

    Args:
        problem: what to plan.
        members: instructions; shape (members,).
        windows_s: seconds; shape (members, lanes), as what is returned.
    """
    choices = np.empty(windows_s.shape, dtype=np.int64)
    point_sets = problem.point_sets
    for i, window_s, slowest in zip(members.tolist(), windows_s, choices, strict=True):
        slowest[:] = point_sets[i].seconds.searchsorted(window_s, "right")
    choices -= 1
    return np.maximum(choices, 0, out=choices)


def times_s(problem: Problem, choices: Choices) -> Array:
    """Seconds of each instruction; shape (instructions, lanes)."""
    return problem.table.seconds.take(problem.table.first + choices)


def energies_in_time_j(problem: Problem, choices: Choices, deadlines_s: Array) -> Array:
    """Joules of all GPUs over the iteration, by lane; infinite where the makespan exceeds its deadline by any digit."""
    places = problem.table.first + choices
    seconds = problem.table.seconds.take(places)
    joules = problem.table.joules.take(places)
    makespans_s, energies_j = iteration_costs(problem.dag, seconds, joules, problem.waiting_power_w)
    return np.where(makespans_s <= deadlines_s, energies_j, np.inf)


def reclaim(problem: Problem, choices: Choices, deadlines_s: Array) -> Choices:
    """Slow instructions into the slack around them, in order of dependency, until no single one can be slowed.

    Args:
        problem: The instructions and their points.
        choices: Plans, shape (instructions, plans); where one misses its deadline, instructions are sped up, and slack
            may be left.
        deadlines_s: By plan, the bound on its makespan; at least that of the fastest plan.
    """
    ends_s = latest_ends(problem.dag, times_s(problem, choices), deadlines_s)

    def pick(members: Indices, start_s: Array) -> Choices:
        return slowest_within(problem, members, ends_s[members] - start_s)

    return sweep(problem, len(deadlines_s), pick)
