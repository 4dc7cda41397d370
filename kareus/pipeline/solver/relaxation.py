"""The linear program below the iteration frontier: every instruction may run between the points of its lower hull.

Its optimum is the least energy that any plan with that deadline can have. One model serves all deadlines: only the
bound on the makespan moves, and the simplex method starts from the basis of the deadline before.
"""

from dataclasses import dataclass

import highspy
import numpy as np

from kareus.arrays import Array
from kareus.errors import ArtifactError
from kareus.gpu_model.waiting import total_energy_j
from kareus.pipeline.solver.dag import makespan
from kareus.pipeline.solver.formulation import formulate, load
from kareus.pipeline.solver.problem import Problem

CLOSE = 1e-9
"""Relative difference that `Relaxation.time_s` does not resolve."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """Optimum of the relaxation for one deadline, and the line that supports the bound there."""

    energy_j: float
    """Of all GPUs over the iteration: no plan within the deadline uses less."""
    time_s: float
    """Makespan."""
    times_s: Array
    """Of each instruction."""
    prices_w: Array
    """Joules that a second of each edge is worth, in the order of `Formulation.edges`; none is negative."""
    intercept_j: float
    """Value of the supporting line at a makespan of 0."""
    slope_w: float
    """Of the supporting line: never above 0."""
    least_j: float
    """Energy that no plan undercuts, whatever its makespan; tighter than the line only where numbers are far apart."""

    def bound_j(self, time_s: float) -> float:
        """Energy that no plan with this makespan or less undercuts; tight where the relaxation was solved."""
        return max(self.intercept_j + self.slope_w * time_s, self.least_j)


class Relaxation:
    """The linear program of a problem, kept warm between deadlines."""

    def __init__(self, problem: Problem) -> None:
        self._dag, self._point_sets = problem.dag, problem.point_sets
        self.fastest_s = makespan(problem.dag, [points.times_s[0] for points in problem.point_sets])
        """Makespan that no plan undercuts."""
        self.slowest_s = makespan(problem.dag, [points.times_s[-1] for points in problem.point_sets])
        """Makespan that no plan without needless waiting exceeds."""
        least_j = problem.effective_energy_j([len(points.times_s) - 1 for points in problem.point_sets])
        self._least_j = total_energy_j(least_j, self.fastest_s, problem.waiting_power_w)
        hulls = {id(points): points.hull for points in problem.distinct}
        self._formulation = formulate(problem, [hulls[id(points)] for points in problem.point_sets])
        self._highs = load(self._formulation)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of instructions, in the order of prices; the end of the iteration has the number after the last."""
        return self._formulation.edges

    def solve(self, deadline_s: float) -> Relaxed:
        """Minimise energy over all relaxed plans with a makespan of at most `deadline_s` (may be infinite).

        Raises:
            ValueError: no plan is that fast.
            ArtifactError: HiGHS finds no optimum.
        """
        deadline_s = min(deadline_s, self.slowest_s)
        self._highs.changeColBounds(self._formulation.makespan, 0.0, deadline_s / self._formulation.unit_s)
        self._optimise(deadline_s)

        # The bound comes from the prices of the rows, not from the value of the objective: see `_supporting_line`.
        solution = self._highs.getSolution()
        times_s = self._formulation.times_s(self._formulation.shares(np.asarray(solution.col_value)))
        prices = np.maximum(np.asarray(solution.row_dual), 0.0)
        intercept_j, slope_w = self._supporting_line(prices)
        return Relaxed(
            energy_j=intercept_j + slope_w * deadline_s,
            time_s=makespan(self._dag, times_s.tolist()),
            times_s=times_s,
            prices_w=prices * (self._formulation.unit_j / self._formulation.unit_s),
            intercept_j=intercept_j,
            slope_w=slope_w,
            least_j=self._least_j,
        )

    def _optimise(self, deadline_s: float) -> None:
        """Solve the model as it is; once more without the basis of the deadline before where that ends in nothing."""
        self._highs.run()
        status = self._highs.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible):
            self._highs.clearSolver()
            self._highs.run()
            status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kOptimal:
            return
        text = self._highs.modelStatusToString(status)
        if status == highspy.HighsModelStatus.kInfeasible:
            raise ValueError(f"no plan within {deadline_s} s: {text}")
        raise ArtifactError(
            f"no plan was found within {deadline_s:.6g} s: the solver ended with '{text}'; its numbers are out of "
            "proportion, so check times and energies of the microbatch frontiers, or rerun the stage 'frontier'."
        )

    def makespan_at_points(self, relaxed: Relaxed) -> float:
        """Makespan of an optimum with instructions at real points, where it means them, in every digit.

        Times of the optimum are sums of steps: a rounding error below those of the points, they would make a deadline
        that the plan misses.
        """
        pairs = zip(self._point_sets, relaxed.times_s, strict=True)
        times_s = [points.times_s[np.abs(points.seconds - near_s).argmin()] for points, near_s in pairs]
        is_real = np.isclose(times_s, relaxed.times_s, rtol=CLOSE, atol=0.0).all()
        return makespan(self._dag, times_s) if is_real else relaxed.time_s

    def time_s(self, energy_j: float) -> float | None:
        """Least makespan of a relaxed plan within an energy, which no plan undercuts; None if none is that frugal.

        Newton's method: the bound is convex and falls with time, so the supporting line of a time that is too short
        reaches the energy at a longer one that is not too long.
        """
        if energy_j < self.solve(self.slowest_s).energy_j * (1 - CLOSE):
            return None
        time_s = self.fastest_s
        while True:
            relaxed = self.solve(time_s * (1 + CLOSE))
            if relaxed.energy_j <= energy_j * (1 + CLOSE):
                return time_s
            longer_s = (energy_j - relaxed.intercept_j) / relaxed.slope_w
            if longer_s <= time_s * (1 + CLOSE):
                return time_s
            time_s = longer_s

    def _supporting_line(self, prices: Array) -> tuple[float, float]:
        """Intercept and slope of a line that bounds energy over time from below, by weak duality.

        Whatever the prices of the rows are, as long as none is negative: so a solution within HiGHS' tolerances gives
        a bound that needs none. Starts and makespan lie between 0 and the deadline, shares between 0 and 1.
        """
        form = self._formulation
        earned = np.bincount(form.columns, weights=form.values * prices[form.rows], minlength=len(form.cost))
        negative = np.minimum(form.cost - earned, 0.0)
        intercept = form.offset + prices @ form.lower + form.shares(negative).sum()
        slope = negative[: form.makespan + 1].sum()
        return float(intercept) * form.unit_j, float(slope) * form.unit_j / form.unit_s
