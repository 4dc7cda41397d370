"""The linear program below the iteration frontier: every instruction may run between the points of its lower hull.

Its optimum is the least energy that any plan with that deadline can have. One model serves all deadlines: only the
bound on the makespan moves, and the simplex method starts from the basis of the deadline before.
"""

from dataclasses import dataclass

import highspy
import numpy as np

from kareus.pipeline.formulation import formulate, load
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


class Relaxation:
    """The linear program of a problem, kept warm between deadlines."""

    def __init__(self, problem: Problem) -> None:
        hulls = [points.hull for points in problem.point_sets]
        self._formulation = formulate(problem, hulls)
        self._times_s = [
            np.array([points.times_s[c] for c in hull]) for points, hull in zip(problem.point_sets, hulls, strict=True)
        ]
        self._highs = load(self._formulation)

    def solve(self, deadline_s: float) -> Relaxed:
        """Minimise energy over all relaxed plans with a makespan of at most `deadline_s` (may be infinite).

        Raises:
            ValueError: no plan is that fast.
        """
        self._highs.changeColBounds(self._formulation.makespan, 0.0, deadline_s)
        self._highs.run()
        status = self._highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise ValueError(f"no plan within {deadline_s} s: {self._highs.modelStatusToString(status)}")
        values = np.asarray(self._highs.getSolution().col_value)
        return Relaxed(
            energy_j=self._highs.getObjectiveValue(),
            time_s=float(values[self._formulation.makespan]),
            times_s=tuple(
                float(times_s @ values[own.start : own.stop])
                for times_s, own in zip(self._times_s, self._formulation.weights, strict=True)
            ),
        )
