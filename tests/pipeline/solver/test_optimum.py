"""Plans and bounds against the optimum that SciPy's branch and bound finds on graphs of any shape."""

import itertools

import numpy as np
import pytest
from helpers.examples import about
from helpers.pipelines import B, F, problem
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from kareus.pipeline.solver.dag import Dag
from kareus.pipeline.solver.frontier import iteration_frontier, plans_within
from kareus.pipeline.solver.problem import Problem, point_set


def optimum_j(problem: Problem, deadline_s: float) -> float:
    """Least energy within a deadline: a binary for every point, starts, and the makespan; one row for every edge."""
    n, sizes = len(problem.point_sets), [len(points.times_s) for points in problem.point_sets]
    first = n + 1 + np.concatenate([[0], np.cumsum(sizes)])
    columns = int(first[-1])
    rows, lower, upper = [], [], []
    for i, points in enumerate(problem.point_sets):
        own = slice(first[i], first[i + 1])
        one = np.zeros(columns)
        one[own] = 1.0
        rows, lower, upper = [*rows, one], [*lower, 1.0], [*upper, 1.0]
        for after, transfer_s in [*problem.dag.successors[i], (n, 0.0)]:
            row = np.zeros(columns)
            row[after], row[i], row[own] = 1.0, -1.0, -np.array(points.times_s)
            rows, lower, upper = [*rows, row], [*lower, transfer_s], [*upper, np.inf]
    cost = np.zeros(columns)
    cost[n] = problem.waiting_power_w
    cost[n + 1 :] = [energy_j for points in problem.point_sets for energy_j in points.energies_j]
    largest = np.concatenate([np.full(n, np.inf), [deadline_s * (1 + 1e-9)], np.ones(columns - n - 1)])
    solved = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), lower, upper),
        bounds=Bounds(np.zeros(columns), largest),
        integrality=np.concatenate([np.zeros(n + 1), np.ones(columns - n - 1)]),
        options={"mip_rel_gap": 1e-9},
    )
    assert solved.status == 0, solved.message
    return float(solved.fun)


@st.composite
def any_graphs(draw):
    """Up to 7 instructions of up to 5 points, which wait for any of those before them."""
    count = draw(st.integers(1, 7))
    edges = [
        (before, after, draw(st.sampled_from([0.0, 0.25])))
        for before, after in itertools.combinations(range(count), 2)
        if draw(st.booleans())
    ]
    point = st.tuples(st.integers(1, 40), st.integers(1, 90))
    sets = [
        point_set([(k, t / 8, float(e)) for k, (t, e) in enumerate(draw(st.lists(point, min_size=1, max_size=5)))])
        for _ in range(count)
    ]
    return Problem(
        dag=Dag(
            order=tuple(range(count)),
            predecessors=tuple(tuple((b, s) for b, a, s in edges if a == i) for i in range(count)),
            successors=tuple(tuple((a, s) for b, a, s in edges if b == i) for i in range(count)),
        ),
        point_sets=tuple(sets),
        waiting_power_w=draw(st.sampled_from([0.0, 7.0])),
    )


@about(25)
@given(any_graphs(), st.floats(1e-6, 1))
def test_the_optimum_is_between_bound_and_plan_on_any_graph(problem, share):
    fastest_s, slowest_s = (problem.cost([c] * len(problem.point_sets))[0] for c in (0, -1))
    deadline_s = fastest_s + share * (slowest_s - fastest_s) + 1e-9
    (plan,) = plans_within(problem, [deadline_s])
    best_j = optimum_j(problem, deadline_s)
    assert plan.lower_bound_j <= best_j * (1 + 1e-7)
    assert best_j <= plan.energy_j * (1 + 1e-7)


@about(20)
@given(any_graphs())
def test_the_fastest_plan_is_the_cheapest_of_its_time(problem):
    first = iteration_frontier(problem, 3)[0]
    assert first.time_s == pytest.approx(problem.cost([0] * len(problem.point_sets))[0])
    assert first.energy_j == pytest.approx(optimum_j(problem, first.time_s), rel=1e-6)


def test_short_pipelines_are_within_a_thousandth_of_the_optimum():
    """Nine points that fall less and less, at different speeds on the two stages."""
    sets = {
        (stage, direction): [(work * (1 + k / 12), 300 * work * (0.7 + 0.3 / (1 + k / 3))) for k in range(9)]
        for stage in (0, 1)
        for direction, work in ((F, 1.0 + stage / 9), (B, 2.1))
    }
    pipeline = problem(2, 3, sets, power_w=50.0)
    fastest_s, frugal_s = (iteration_frontier(pipeline, 2)[n].time_s for n in (0, -1))
    deadlines_s = np.linspace(fastest_s, frugal_s, 6).tolist()
    for plan in plans_within(pipeline, deadlines_s):
        assert plan.energy_j <= optimum_j(pipeline, plan.deadline_s) * 1.001
