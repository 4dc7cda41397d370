"""The bound at the least makespan: below every plan, never looser than the relaxation, and tight where pairs are."""

import pytest
from helpers.examples import about
from helpers.pipelines import B, F, all_plans, problem, tiny_problems
from hypothesis import given

from kareus.pipeline.solver.frontier import iteration_frontier
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.pipeline.solver.starts import tightened


@about(40)
@given(tiny_problems())
def test_it_bounds_every_plan_of_the_least_makespan(problem):
    plans = all_plans(problem)
    fastest_s = min(time_s for time_s, _ in plans)
    best_j = min(energy_j for time_s, energy_j in plans if time_s <= fastest_s * (1 + 1e-9))
    deadline_s = fastest_s * (1 + 1e-11)
    loose_j, bound_j = (Relaxation(p).solve(deadline_s).energy_j for p in (problem, tightened(problem)))
    assert loose_j * (1 - 1e-7) <= bound_j <= best_j * (1 + 1e-7)


def test_pairs_of_points_that_miss_their_window_leave_no_gap():
    """The first stage is slow; forward and backward of the second have 4 s together, of which points use 3.5 s."""
    first = {(0, F): [(2.0, 9.0)], (0, B): [(2.0, 9.0)]}
    second = {(1, d): [(1.0, 10.0), (2.5, 5.0)] for d in (F, B)}
    plan = iteration_frontier(problem(2, 3, first | second), 2)[0]
    assert plan.gap == pytest.approx(0.0, abs=1e-9)
    assert Relaxation(problem(2, 3, first | second)).solve(plan.time_s).energy_j < plan.energy_j
