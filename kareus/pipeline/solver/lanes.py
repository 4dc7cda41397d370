"""Timing and cost of many plans of one problem at once, each in a lane of its own.

Whatever belongs to a plan is an array of shape (instructions, lanes). The loops run over instructions in order of
dependency and do all lanes in one NumPy call, which makes hundreds of plans cost little more than one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.pipeline.solver.dag import Dag
from kareus.pipeline.solver.problem import PointSet, Problem

Choices = NDArray[np.int64]
"""Index into the point set of each instruction; shape (instructions, lanes)."""
Pick = Callable[[int, Array], Choices]
"""Of an instruction and its start in every lane, what it runs at there; shape (lanes,)."""
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


def latest_ends(dag: Dag, times_s: Array, deadlines_s: Array) -> Array:
    """Latest end of each instruction in seconds that still lets the iteration end by its lane's deadline.

    Args:
        dag: the instructions.
        times_s: seconds of each instruction; shape (instructions, lanes).
        deadlines_s: by lane.

    Returns:
        Shape (instructions, lanes).
    """
    ends_s, starts_s = np.empty_like(times_s), np.empty_like(times_s)
    for i in reversed(dag.order):
        latest_s = deadlines_s
        for after, transfer_s in dag.successors[i]:
            latest_s = np.minimum(latest_s, starts_s[after] - transfer_s)
        ends_s[i] = latest_s
        np.subtract(latest_s, times_s[i], out=starts_s[i])
    return ends_s


def earliest_starts_s(problem: Problem, seconds: Array) -> Array:
    """Earliest start of each instruction, added up as `dag.earliest_starts` does, so that they agree in every digit.

    Args:
        problem: whose instructions they are.
        seconds: of each instruction; shape (instructions, lanes), as what is returned.
    """
    return -latest_ends(problem.dag.mirrored, seconds, np.zeros(seconds.shape[1]))


def sweep(problem: Problem, lanes: int, pick: Pick) -> Choices:
    """Go through the instructions in order of dependency, starting each as soon as it can and letting `pick` choose."""
    choices = np.empty((len(problem.point_sets), lanes), dtype=np.int64)
    ends_s = np.empty(choices.shape)
    for i in problem.dag.order:
        start_s = np.zeros(lanes)
        for before, transfer_s in problem.dag.predecessors[i]:
            start_s = np.maximum(start_s, ends_s[before] + transfer_s)
        choices[i] = pick(i, start_s)
        np.add(start_s, problem.point_sets[i].seconds[choices[i]], out=ends_s[i])
    return choices


def slowest_within(points: PointSet, window_s: Array) -> Choices:
    """The slowest point that takes no longer than a window, or the fastest if none is that fast; shape (lanes,)."""
    return np.maximum(points.seconds.searchsorted(window_s, side="right") - 1, 0)


def times_s(problem: Problem, choices: Choices) -> Array:
    """Seconds of each instruction; shape (instructions, lanes)."""
    return np.array([p.seconds[own] for p, own in zip(problem.point_sets, choices, strict=True)])


def energies_in_time_j(problem: Problem, choices: Choices, deadlines_s: Array) -> Array:
    """Joules of all GPUs over the iteration, by lane; infinite where the makespan exceeds its deadline by any digit."""
    seconds = times_s(problem, choices)
    makespans_s = (earliest_starts_s(problem, seconds) + seconds).max(axis=0)
    joules = [p.joules[own] for p, own in zip(problem.point_sets, choices, strict=True)]
    energies_j = np.sum(joules, axis=0) + problem.waiting_power_w * makespans_s
    return np.where(makespans_s <= deadlines_s, energies_j, np.inf)
