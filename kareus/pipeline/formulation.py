"""The linear formulation of a problem, for HiGHS: relaxed it bounds the frontier from below, integral it is exact.

Columns: the start of each instruction; the weight of each of its options, which add up to 1; the makespan. Rows: the
weights of an instruction, then one for every edge, "starts after the other has ended and sent".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from kareus.pipeline.problem import Problem

Options = Sequence[Sequence[int]]
"""By instruction, which points of its set may be chosen (indices)."""


@dataclass(slots=True)
class _Rows:
    """Rows of a matrix under construction, in compressed form."""

    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, columns: Sequence[int], values: Sequence[float], lower: float, upper: float) -> None:
        """Append `lower <= sum of values x columns <= upper`."""
        self.columns += columns
        self.values += values
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)


@dataclass(frozen=True, slots=True)
class Formulation:
    """A model, and where its columns stand."""

    model: highspy.HighsLp
    weights: tuple[range, ...]
    """By instruction, the columns of its options, in their order."""
    makespan: int
    """Column of the makespan in seconds: bound it from above to set a deadline."""


def formulate(problem: Problem, options: Options) -> Formulation:
    """Minimise energy over the weights of `options`; waiting is charged on the makespan, which is not bounded yet."""
    count = len(options)
    ends = count + np.cumsum([len(own) for own in options])
    weights = tuple(range(int(end) - len(own), int(end)) for own, end in zip(options, ends, strict=True))
    makespan = int(ends[-1])
    energies_j = [points.energies_j[c] for points, own in zip(problem.point_sets, options, strict=True) for c in own]

    model = highspy.HighsLp()
    model.num_col_ = makespan + 1
    model.col_cost_ = np.array([*np.zeros(count), *energies_j, problem.waiting_power_w])
    model.col_lower_ = np.zeros(makespan + 1)
    model.col_upper_ = np.full(makespan + 1, highspy.kHighsInf)
    rows = _rows(problem, options, weights, makespan)
    model.num_row_ = len(rows.lower)
    model.row_lower_, model.row_upper_ = np.array(rows.lower), np.array(rows.upper)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.array(rows.starts, dtype=np.int32)
    model.a_matrix_.index_ = np.array(rows.columns, dtype=np.int32)
    model.a_matrix_.value_ = np.array(rows.values)
    return Formulation(model, weights, makespan)


def load(formulation: Formulation, **settings: float) -> highspy.Highs:
    """Give the model to a silent HiGHS; one thread, so that results repeat.

    Args:
        formulation: the model.
        settings: options of HiGHS.
    """
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "threads": 1, **settings}.items():
        highs.setOptionValue(name, value)
    highs.passModel(formulation.model)
    return highs


def _rows(problem: Problem, options: Options, weights: Sequence[range], makespan: int) -> _Rows:
    rows = _Rows()
    for i, own in enumerate(options):
        rows.add([*weights[i]], [1.0] * len(own), 1.0, 1.0)
        times_s = [-problem.point_sets[i].times_s[c] for c in own]
        for after, transfer_s in problem.dag.successors[i] or ((makespan, 0.0),):
            rows.add([after, i, *weights[i]], [1.0, -1.0, *times_s], transfer_s, highspy.kHighsInf)
    return rows
