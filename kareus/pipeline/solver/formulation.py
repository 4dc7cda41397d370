"""The linear formulation of a problem, for HiGHS: relaxed it bounds the frontier from below, integral it is exact.

Columns: the start of each instruction; the makespan; then one for every step from an option of an instruction to its
next slower one, the share of that step that is taken. Rows: one for every edge, "starts after the other has ended and
sent". On a convex hull a share of a step saves more than one of the next, so steps are taken in order by themselves.

HiGHS compares with absolute tolerances. So that plans do not depend on how large the numbers are, it is given times and
energies in powers of ten of a second and a joule: an instruction's mean time is from 0.1 to 1 of the one, a step's mean
energy from 10 to 100 of the other. Pipelines of today have 1 s and 1 J.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from kareus.arrays import Array, Indices
from kareus.pipeline.solver.problem import Problem

AllowedPoints = Sequence[Sequence[int]]
"""By instruction, which points of its set may be chosen: indices, ascending."""


@dataclass(frozen=True, slots=True)
class Formulation:
    """Columns and rows of a linear program, and what its steps mean."""

    fastest_s: Array
    """Seconds of each instruction's first option."""
    owners: Indices
    """By step, its instruction."""
    steps_s: Array
    """By step, by how many seconds it slows its instruction."""
    unit_s: float
    """Seconds of one unit of time in columns and rows."""
    unit_j: float
    """Joules of one unit of energy in columns."""
    cost: Array
    """Units of energy that one unit of each column's variable costs."""
    offset: float
    """Effective energy of the first options, in units."""
    rows: Indices
    """By entry of the matrix, its row, ascending; so are `columns` and `values`."""
    columns: Indices
    values: Array
    edges: tuple[tuple[int, int], ...]
    """By row, its two instructions; the end of the iteration has the number after the last."""
    lower: Array
    """By row, the least value in units of time; there is no largest."""

    @property
    def makespan(self) -> int:
        """Column of the makespan in units of time: bound it from above to set a deadline. The steps come after it."""
        return len(self.fastest_s)

    def shares(self, values: Array) -> Array:
        """The part of one number for each column that is about the steps."""
        return values[self.makespan + 1 :]

    def times_s(self, shares: Array) -> Array:
        """Seconds of each instruction, from the share that is taken of each step."""
        slower_s = np.bincount(self.owners, weights=shares * self.steps_s, minlength=len(self.fastest_s))
        return np.asarray(self.fastest_s + slower_s)


def formulate(problem: Problem, options: AllowedPoints) -> Formulation:
    """Minimise energy over `options`; waiting is charged on the makespan, which is not bounded yet."""
    point_sets, count = problem.point_sets, len(options)
    times_s = [points.seconds[list(places)] for points, places in zip(point_sets, options, strict=True)]
    energies_j = [points.joules[list(places)] for points, places in zip(point_sets, options, strict=True)]
    fastest_s = np.array([own_s[0] for own_s in times_s])
    energy_steps_j = np.concatenate([np.diff(own_j) for own_j in energies_j])
    unit_s = _unit(fastest_s, -1)
    unit_j = _unit(energy_steps_j if energy_steps_j.any() else np.array([problem.waiting_power_w * unit_s]), 1)
    steps = [np.diff(own_s) / unit_s for own_s in times_s]

    # Columns: starts, makespan, then steps; those of an instruction end before column `ends` of it.
    ends = count + 1 + np.cumsum([len(places) for places in steps])
    edges = [
        (i, after, transfer_s)
        for i in range(count)
        for after, transfer_s in problem.dag.successors[i] or ((count, 0.0),)
    ]
    # A row says: start of the next - start - the steps taken x their time >= fastest time + transfer. The makespan
    # stands for the start of what follows the last instructions.
    waiting = problem.waiting_power_w * unit_s / unit_j
    return Formulation(
        fastest_s=fastest_s,
        owners=np.repeat(np.arange(count), [len(places) for places in steps]),
        steps_s=np.concatenate([np.diff(own_s) for own_s in times_s]),
        unit_s=unit_s,
        unit_j=unit_j,
        cost=np.concatenate([np.zeros(count), [waiting], energy_steps_j / unit_j]),
        offset=float(sum(own_j[0] for own_j in energies_j)) / unit_j,
        rows=np.repeat(np.arange(len(edges)), [2 + len(steps[i]) for i, _, _ in edges]),
        columns=np.concatenate([[after, i, *range(ends[i] - len(steps[i]), ends[i])] for i, after, _ in edges]),
        values=np.concatenate([[1.0, -1.0, *-steps[i]] for i, _, _ in edges]),
        edges=tuple((i, after) for i, after, _ in edges),
        lower=np.array([(times_s[i][0] + transfer_s) / unit_s for i, _, transfer_s in edges]),
    )


def _unit(values: Array, decade: int) -> float:
    """Power of ten in which the mean magnitude of numbers is from 10^decade to ten times that; 1 if all are 0."""
    return float(10.0 ** (math.floor(math.log10(np.abs(values).mean())) - decade)) if values.any() else 1.0


def load(formulation: Formulation, **settings: float) -> highspy.Highs:
    """Give the model to a silent HiGHS; one thread, so that results repeat.

    Args:
        formulation: the model.
        settings: options of HiGHS.
    """
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(formulation.cost), len(formulation.lower)
    model.col_cost_, model.offset_ = formulation.cost, formulation.offset
    model.col_lower_ = np.zeros(len(formulation.cost))
    free = np.full(formulation.makespan + 1, highspy.kHighsInf)
    model.col_upper_ = np.concatenate([free, np.ones(len(formulation.owners))])
    model.row_lower_, model.row_upper_ = formulation.lower, np.full(len(formulation.lower), highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    entries = np.bincount(formulation.rows, minlength=model.num_row_)
    model.a_matrix_.start_ = np.append(0, np.cumsum(entries)).astype(np.int32)
    model.a_matrix_.index_ = formulation.columns.astype(np.int32)
    model.a_matrix_.value_ = formulation.values
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "threads": 1, **settings}.items():
        highs.setOptionValue(name, value)
    highs.passModel(model)
    return highs
