"""The linear program below the iteration frontier: every instruction may run between the points of its lower hull.

Its optimum is the least energy that any plan with that deadline can have. One model serves all deadlines: only the
bound on the makespan moves, and the simplex method starts from the basis of the deadline before.

Columns: the start of each instruction, one per segment of its hull (how far the instruction goes along it, seconds),
and the makespan. Segments get flatter to the right, so the cheapest solution fills them from the left.
"""

from dataclasses import dataclass
from itertools import pairwise

import highspy
import numpy as np

from kareus.pipeline.problem import Problem


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Optimum of the relaxation for one deadline."""

    energy_j: float
    """Of all GPUs over the iteration: the lower bound."""
    time_s: float
    """Makespan."""
    times_s: tuple[float, ...]
    """Of each instruction."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """One segment of the hull of one instruction."""

    instruction: int
    length_s: float
    slope_j_per_s: float


class Relaxation:
    """The linear program of a problem, kept warm between deadlines."""

    def __init__(self, problem: Problem) -> None:
        self._fastest_s = np.array([points.times_s[0] for points in problem.point_sets])
        self._segments = _segments(problem)
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)  # noqa: FBT003 - HiGHS' own interface
        self._highs.setOptionValue("threads", 1)
        self._highs.passModel(_model(problem, self._segments))
        self._makespan = len(self._fastest_s) + len(self._segments)

    def solve(self, deadline_s: float) -> Relaxed:
        """Minimise energy over all relaxed plans with a makespan of at most `deadline_s` (may be infinite).

        Raises:
            ValueError: no plan is that fast.
        """
        self._highs.changeColBounds(self._makespan, 0.0, deadline_s)
        self._highs.run()
        status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise ValueError(f"no plan within {deadline_s} s: {self._highs.modelStatusToString(status)}")
        values = np.asarray(self._highs.getSolution().col_value)
        times_s = self._fastest_s.copy()
        np.add.at(times_s, [s.instruction for s in self._segments], values[len(times_s) : self._makespan])
        return Relaxed(self._highs.getObjectiveValue(), float(values[self._makespan]), tuple(times_s.tolist()))


def _segments(problem: Problem) -> list[_Segment]:
    segments = []
    for instruction, points in enumerate(problem.point_sets):
        for left, right in pairwise(points.hull):
            length_s = points.times_s[right] - points.times_s[left]
            slope = (points.energies_j[right] - points.energies_j[left]) / length_s
            segments.append(_Segment(instruction, length_s, slope))
    return segments


def _model(problem: Problem, segments: list[_Segment]) -> highspy.HighsLp:
    count = len(problem.point_sets)
    own: list[list[int]] = [[] for _ in range(count)]
    for column, segment in enumerate(segments, start=count):
        own[segment.instruction].append(column)
    makespan = count + len(segments)
    rows, lower = [], []
    for i in range(count):
        fastest_s = problem.point_sets[i].times_s[0]
        ends = problem.dag.successors[i] or ((makespan, 0.0),)
        for after, transfer_s in ends:  # start of what comes after - own start - own time beyond the fastest >= ...
            rows.append([(after, 1.0), (i, -1.0), *((k, -1.0) for k in own[i])])
            lower.append(fastest_s + transfer_s)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = makespan + 1, len(rows)
    model.col_cost_ = np.array([*np.zeros(count), *(s.slope_j_per_s for s in segments), problem.waiting_power_w])
    model.col_lower_ = np.zeros(makespan + 1)
    infinity = highspy.kHighsInf
    model.col_upper_ = np.array([*np.full(count, infinity), *(s.length_s for s in segments), infinity])
    model.row_lower_, model.row_upper_ = np.array(lower), np.full(len(rows), infinity)
    model.offset_ = problem.effective_energy_j([0] * count)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    model.a_matrix_.index_ = np.array([column for row in rows for column, _ in row], dtype=np.int32)
    model.a_matrix_.value_ = np.array([value for row in rows for _, value in row])
    return model
