"""A beam search for plans, guided by the prices of the relaxation.

The relaxation has a price of time on every edge of the DAG: what a second between two instructions is worth. With these
prices the gap of a plan to the bound is a sum over instructions (what a point costs more than the best one at its
price) and edges (price times slack), so plans that are not finished can be compared. Instructions are gone through in
order of dependency; each plan of the beam goes on with a few points, and the cheapest are kept. Of plans whose ends are
about the same only the cheapest is, without which the beam would fill with plans that hardly differ. The search goes
forwards and backwards through time, for all deadlines at once.
"""

from dataclasses import dataclass, replace

import numpy as np

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.dag import latest_ends
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, energies_in_time_j, mirrored, parts, reclaim
from kareus.pipeline.solver.problem import Problem

Lanes = Array
"""Of each plan in the beam of each deadline; shape (deadlines, width)."""
WIDTHS = (24, 512)
"""Fewest and most plans of a beam."""
EFFORT = 2500
"""Instructions times plans of a beam, within `WIDTHS`."""
CHEAPEST = 3
"""Points that a plan goes on with: those with the least cost at the instruction's price."""
NEAREST = 2
"""Further ones: those that end just before and just after the time of the relaxation."""
STRAY = 0.06
"""Share of the deadline's price that is charged for ending apart from the relaxation; prices hold close to it only."""
ALIKE = 2e-4
"""Share of the deadline by which ends of plans that are about the same differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What the relaxation says about each of some deadlines."""

    seconds: Array
    """Of each instruction; shape (instructions, deadlines)."""
    prices_w: dict[tuple[int, int], Array]
    """Joules that a second of an edge is worth, by its two instructions; each of shape (deadlines,)."""
    worth_w: Array
    """Joules that a second of an instruction is worth: the sum over its edges; shape (instructions, deadlines)."""
    deadline_w: Array
    """Joules that a second of the iteration is worth; shape (deadlines,)."""

    def at(self, part: slice) -> "Guide":
        """The same of some of the deadlines."""
        return Guide(
            seconds=self.seconds[:, part],
            prices_w={edge: price_w[part] for edge, price_w in self.prices_w.items()},
            worth_w=self.worth_w[:, part],
            deadline_w=self.deadline_w[part],
        )

    def mirrored(self) -> "Guide":
        """The same with time running backwards."""
        return replace(self, prices_w={(after, before): price_w for (before, after), price_w in self.prices_w.items()})


def guided_plans(problem: Problem, guide: Guide, deadlines_s: Array) -> Choices:
    """Choose a point for every instruction, so that each deadline is kept.

    Args:
        problem: what to plan.
        guide: of these deadlines.
        deadlines_s: bounds on the makespan; none is below the makespan of the fastest plan.

    Returns:
        One plan for each deadline; shape (instructions, deadlines).
    """
    width = int(np.clip(EFFORT // len(problem.point_sets), *WIDTHS))
    cells = len(problem.point_sets) * width
    each = [_cheapest(problem, guide.at(part), deadlines_s[part], width) for part in parts(len(deadlines_s), cells)]
    return np.hstack(each)


def _cheapest(problem: Problem, guide: Guide, deadlines_s: Array, width: int) -> Choices:
    """The cheapest plan of each deadline, of all that either beam ends with."""
    fastest = np.zeros((len(problem.point_sets), len(deadlines_s)), dtype=np.int64)
    # Ends are sums of floats, and a beam may end with plans that are late by a rounding error: these never are.
    plans = [reclaim(problem, fastest, deadlines_s * (1 - TOLERANCE))[:, :, np.newaxis]]
    for way, along in ((problem, guide), (mirrored(problem), guide.mirrored())):
        plans.append(_Beam(way, along, deadlines_s, width).run())
    every = np.concatenate(plans, axis=2)
    lanes = every.reshape(len(every), -1)
    costs_j = energies_in_time_j(problem, lanes, deadlines_s.repeat(every.shape[2])).reshape(len(deadlines_s), -1)
    best = every[:, np.arange(len(deadlines_s)), costs_j.argmin(axis=1)]
    in_time = reclaim(problem, best, deadlines_s)
    is_better = energies_in_time_j(problem, in_time, deadlines_s) < costs_j.min(axis=1)
    return np.where(is_better, in_time, best)


class _Beam:
    """The plans of all deadlines so far: their ends that others still wait for, and what they cost."""

    def __init__(self, problem: Problem, guide: Guide, deadlines_s: Array, width: int) -> None:
        self._problem, self._guide, self._deadlines_s, self._width = problem, guide, deadlines_s, width
        points, allowed_s = problem.table, deadlines_s * (1 + TOLERANCE)
        fastest_s = points.seconds.take(points.first).repeat(len(deadlines_s), axis=1)
        self._limits_s = latest_ends(problem.dag, fastest_s, allowed_s)
        self._targets_s = np.minimum(latest_ends(problem.dag, guide.seconds, deadlines_s), self._limits_s)
        self._cheapest = _cheapest_points(problem, guide.worth_w)
        self._waiting = [len(edges) for edges in problem.dag.successors]
        self._rows = np.arange(len(deadlines_s))[:, np.newaxis]
        self._costs_j = np.zeros((len(deadlines_s), 1))
        self._states = np.zeros((len(deadlines_s), 1), dtype=np.int64)
        self._ends_s: dict[int, Array] = {}

    def run(self) -> Choices:
        """Go through all instructions; shape (instructions, deadlines, width)."""
        steps = [self._advance(i) for i in self._problem.dag.order]
        lanes = np.broadcast_to(np.arange(self._costs_j.shape[1]), self._costs_j.shape)
        choices = np.empty((len(steps), *lanes.shape), dtype=np.int64)
        for i, (parents, chosen) in zip(self._problem.dag.order[::-1], steps[::-1], strict=True):
            choices[i] = chosen[self._rows, lanes]
            lanes = parents[self._rows, lanes]
        return choices

    def _advance(self, i: int) -> tuple[Indices, Indices]:
        """Choose points of an instruction; return the plan that each kept one goes on from, and its point."""
        points, worth_w = self._problem.point_sets[i], self._guide.worth_w[i][:, np.newaxis, np.newaxis]
        start_s, costs_j, states = self._started(i)
        options = self._options(i, start_s)
        ends_s = start_s[:, :, np.newaxis] + points.seconds[options]
        costs_j = costs_j[:, :, np.newaxis] + points.joules[options] + worth_w * ends_s + self._stray_j(i, ends_s)
        states = states[:, :, np.newaxis] + self._marks(i, ends_s)
        costs_j[ends_s > self._limits_s[i][:, np.newaxis, np.newaxis]] = np.inf

        count = options.shape[2]
        lanes = (len(options), -1)
        options, states = options.reshape(lanes), states.reshape(lanes)
        ends_s, costs_j = ends_s.reshape(lanes), costs_j.reshape(lanes)
        kept = _best(costs_j, states, self._width)
        parents = kept // count
        self._costs_j, self._states = costs_j[self._rows, kept], states[self._rows, kept]
        self._ends_s = {other: own_s[self._rows, parents] for other, own_s in self._ends_s.items()}
        if self._waiting[i]:
            self._ends_s[i] = ends_s[self._rows, kept]
        return parents, options[self._rows, kept]

    def _started(self, i: int) -> tuple[Lanes, Lanes, Indices]:
        """Start of an instruction, and costs and states without the ends that only it waited for."""
        start_s, costs_j, states = np.zeros_like(self._costs_j), self._costs_j, self._states
        for before, transfer_s in self._problem.dag.predecessors[i]:
            sent_s = self._ends_s[before] + transfer_s
            start_s = np.maximum(start_s, sent_s)
            costs_j = costs_j - self._guide.prices_w[before, i][:, np.newaxis] * self._ends_s[before]
            self._waiting[before] -= 1
            if not self._waiting[before]:
                left_s = self._ends_s.pop(before)
                states = states - self._marks(before, left_s)
                costs_j = costs_j - self._stray_j(before, left_s)
        return start_s, costs_j, states

    def _options(self, i: int, start_s: Lanes) -> Indices:
        """Points to go on with; shape (deadlines, width, options)."""
        seconds = self._problem.point_sets[i].seconds
        slowest = seconds.searchsorted(self._targets_s[i][:, np.newaxis] - start_s, "right") - 1
        near = np.clip(slowest[:, :, np.newaxis] + np.arange(NEAREST), 0, len(seconds) - 1)
        cheapest = self._cheapest[i][:, np.newaxis, :]
        return np.concatenate([np.broadcast_to(cheapest, (*start_s.shape, cheapest.shape[2])), near], axis=2)

    def _stray_j(self, i: int, ends_s: Array) -> Array:
        """What is charged for ends of an instruction apart from the relaxation."""
        column = (-1, *(1,) * (ends_s.ndim - 1))
        stray_s = np.abs(ends_s - self._targets_s[i].reshape(column))
        stray_j: Array = STRAY * self._guide.deadline_w.reshape(column) * stray_s
        return stray_j

    def _marks(self, i: int, ends_s: Array) -> Indices:
        """Numbers whose sums over instructions tell apart what ends differently."""
        unit_s = (ALIKE * self._deadlines_s).reshape(-1, *(1,) * (ends_s.ndim - 1))
        return np.rint(ends_s / unit_s).astype(np.int64) * _factor(i)


def _factor(i: int) -> int:
    """A large odd number of an instruction, below 2^48, so that sums stay within 64 bits."""
    return ((i + 1) * 0x9E3779B97F4A7C15 >> 16) % 2**48 | 1


def _cheapest_points(problem: Problem, worth_w: Array) -> list[Indices]:
    """The points of each instruction that cost least at its price; each of shape (deadlines, points)."""
    members: dict[int, list[int]] = {}
    for i, points in enumerate(problem.point_sets):
        members.setdefault(id(points), []).append(i)
    cheapest: dict[int, Indices] = {}
    for points in problem.distinct:
        alike = members[id(points)]
        costs_j = points.joules + worth_w[alike][:, :, np.newaxis] * points.seconds
        count = min(CHEAPEST, costs_j.shape[2])
        cheapest |= dict(zip(alike, costs_j.argpartition(count - 1, axis=2)[:, :, :count], strict=True))
    return [cheapest[i] for i in range(len(problem.point_sets))]


def _best(ranks_j: Array, states: Indices, width: int) -> Indices:
    """Of the cheapest of each state, up to `width` by rank; shape (deadlines, at most width)."""
    rows = np.arange(len(ranks_j))[:, np.newaxis]
    order = np.lexsort((ranks_j, states))
    states, ranks_j = states[rows, order], ranks_j[rows, order]
    ranks_j[:, 1:][states[:, 1:] == states[:, :-1]] = np.inf
    if ranks_j.shape[1] <= width:
        return order
    return order[rows, ranks_j.argpartition(width - 1, axis=1)[:, :width]]
