"""Iteration frontiers against the enumeration of every plan of tiny pipelines."""

import math

import numpy as np
import pytest
from helpers.examples import about
from helpers.pipelines import B, F, all_plans, clocked_problems, tiny_problems
from helpers.pipelines import problem as pipeline
from highspy import HighsModelStatus
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ArtifactError, ConfigError
from kareus.pareto import pareto_mask
from kareus.pipeline.solver.dag import Dag
from kareus.pipeline.solver.frontier import (
    PlannedIteration,
    cheapest_within,
    fastest_within,
    iteration_frontier,
    plans_within,
)
from kareus.pipeline.solver.lanes import TOLERANCE
from kareus.pipeline.solver.problem import PointSet, Problem, point_set
from kareus.pipeline.solver.starts import Starts

CLOSE = 1e-9


def best_within(plans: list[tuple[float, float]], deadline_s: float) -> float:
    return min(energy_j for time_s, energy_j in plans if time_s <= deadline_s * (1 + CLOSE))


def choice_of(problem: Problem, plan: PlannedIteration) -> list[int]:
    return [points.points.index(p) for points, p in zip(problem.point_sets, plan.points, strict=True)]


@about(30)
@given(tiny_problems(), st.integers(1, 6))
def test_plans_use_real_points_and_keep_their_deadlines(problem, deadlines):
    for plan in iteration_frontier(problem, deadlines):
        assert problem.cost(choice_of(problem, plan)) == (plan.time_s, plan.energy_j)
        assert plan.time_s <= plan.deadline_s * (1 + CLOSE)


@about(30)
@given(tiny_problems(), st.integers(1, 6))
def test_the_best_of_all_plans_is_between_bound_and_plan(problem, deadlines):
    plans = all_plans(problem)
    for plan in iteration_frontier(problem, deadlines):
        best_j = best_within(plans, plan.time_s)
        assert plan.lower_bound_j <= best_j * (1 + CLOSE)
        assert best_j <= plan.energy_j * (1 + CLOSE)
        assert plan.gap == pytest.approx(plan.energy_j / plan.lower_bound_j - 1)
        assert plan.gap >= 0


@about(30)
@given(clocked_problems(), st.integers(1, 6))
def test_bounds_hold_where_waiting_depends_on_the_clock(problem, deadlines):
    """Plans are sought as if GPUs waited at the least power, and cost what they do: a bound stays below all plans."""
    plans = all_plans(problem)
    found = iteration_frontier(problem, deadlines)
    for plan in found:
        assert plan.lower_bound_j <= best_within(plans, plan.time_s) * (1 + CLOSE)
        assert problem.cost(choice_of(problem, plan)) == (plan.time_s, plan.energy_j)
    assert pareto_mask(np.array([(plan.time_s, plan.energy_j) for plan in found])).all()


@about(30)
@given(tiny_problems())
def test_the_first_plan_is_the_cheapest_of_the_fastest(problem):
    plans = all_plans(problem)
    fastest_s = min(time_s for time_s, _ in plans)
    first = iteration_frontier(problem, 3)[0]
    assert first.time_s == pytest.approx(fastest_s)
    assert first.energy_j == pytest.approx(best_within(plans, fastest_s))


@about(30)
@given(tiny_problems(), st.integers(2, 8))
def test_no_plan_dominates_another_and_times_rise(problem, deadlines):
    plans = iteration_frontier(problem, deadlines)
    costs = [(plan.time_s, plan.energy_j) for plan in plans]
    assert pareto_mask(costs).all()
    assert costs == sorted(costs)


@about(20)
@given(tiny_problems())
def test_the_same_problem_has_the_same_frontier(problem):
    assert iteration_frontier(problem, 4) == iteration_frontier(problem, 4)


@about(30)
@given(tiny_problems(), st.floats(0, 1.5))
def test_a_plan_for_a_deadline_keeps_it_and_has_its_bound(problem, share):
    plans = all_plans(problem)
    deadline_s = min(time_s for time_s, _ in plans) * (1 + share)
    plan = cheapest_within(problem, deadline_s)
    assert plan.time_s <= deadline_s * (1 + TOLERANCE)
    assert problem.cost(choice_of(problem, plan)) == (plan.time_s, plan.energy_j)
    assert plan.lower_bound_j <= best_within(plans, deadline_s) * (1 + CLOSE)
    assert plan.energy_j >= best_within(plans, plan.time_s) * (1 - CLOSE)


@about(30)
@given(tiny_problems(), st.floats(0, 1))
def test_a_plan_for_an_energy_keeps_it_and_beats_its_start(problem, share):
    known = iteration_frontier(problem, 2)
    slow_s, energy_j = known[-1].time_s, known[-1].energy_j * (1 + share)
    plan = fastest_within(problem, energy_j, (known[0].time_s, slow_s))
    if plan is not None:
        assert plan.energy_j <= energy_j
        assert plan.time_s < slow_s
        assert problem.cost(choice_of(problem, plan)) == (plan.time_s, plan.energy_j)


def convex(fastest_s: float, energy_j: float) -> list[tuple[float, float]]:
    """Seventeen points that fall less and less, as frontiers over clocks do."""
    return [(fastest_s * (1 + k / 20), energy_j * (0.7 + 0.3 / (1 + k / 4))) for k in range(17)]


def realistic() -> Problem:
    points = {(s, F): convex(1.0 + s / 10, 300.0) for s in range(3)} | {(s, B): convex(2.1, 650.0) for s in range(3)}
    return pipeline(3, 6, points, transfer_s=0.01, power_w=100.0)


def test_realistic_plans_are_within_a_hundredth_of_the_bound():
    plans = iteration_frontier(realistic(), 10)
    assert len(plans) == 11  # one more for the time within which plans count as the fastest
    assert max(plan.gap for plan in plans) < 0.01


def test_one_plan_is_made_for_the_time_within_which_plans_count_as_the_fastest():
    first, second, *_ = iteration_frontier(realistic(), 4)
    assert second.deadline_s == pytest.approx(1.003 * first.time_s)
    assert second.energy_j == pytest.approx(cheapest_within(realistic(), second.deadline_s).energy_j)
    assert second.energy_j < first.energy_j


def test_a_deadline_between_two_plans_is_planned_near_its_bound():
    coarse = iteration_frontier(realistic(), 4)
    deadline_s = coarse[2].time_s * (1 - 1e-6)
    plan = cheapest_within(realistic(), deadline_s)
    assert plan.energy_j < coarse[1].energy_j * 0.98
    assert plan.gap < 0.01


def test_an_energy_between_two_plans_takes_hardly_more_time():
    coarse = iteration_frontier(realistic(), 4)
    energy_j = coarse[1].energy_j * (1 - 1e-6)
    plan = fastest_within(realistic(), energy_j, (coarse[1].time_s, coarse[2].time_s))
    assert plan is not None
    assert plan.energy_j <= energy_j
    assert plan.time_s < coarse[1].time_s + 0.1 * (coarse[2].time_s - coarse[1].time_s)


def test_one_plan_is_left_where_waiting_outweighs_slowing_down():
    points = {(0, F): [(1.0, 10.0), (2.0, 9.0)], (0, B): [(1.0, 10.0), (2.0, 9.0)]}
    (only,) = iteration_frontier(pipeline(1, 2, points, power_w=5.0), 10)
    assert (only.time_s, only.energy_j, only.gap) == (4.0, 60.0, 0.0)


def test_a_plan_that_meets_its_deadline_exactly_is_found():
    """Ends of instructions are sums of floats; a deadline that a plan meets exactly must not lose it to rounding."""
    pipeline = realistic()
    choice = [len(points.times_s) // 2 for points in pipeline.point_sets]
    time_s, energy_j = pipeline.cost(choice)
    plan = cheapest_within(pipeline, time_s)
    assert plan.time_s <= time_s
    assert plan.energy_j <= energy_j


@about(25)
@given(tiny_problems(), st.lists(st.floats(0, 1.5), min_size=1, max_size=5))
def test_plans_keep_deadline_order_and_more_time_costs_no_more(problem, shares):
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    deadlines_s = [fastest_s * (1 + share) for share in shares]
    plans = plans_within(problem, deadlines_s)
    assert [plan.deadline_s for plan in plans] == deadlines_s
    assert all(plan.time_s <= plan.deadline_s * (1 + TOLERANCE) for plan in plans)
    assert all(plan.gap >= 0 for plan in plans)
    by_deadline = sorted(plans, key=lambda plan: plan.deadline_s)
    assert [p.energy_j for p in by_deadline] == sorted((p.energy_j for p in by_deadline), reverse=True)


def test_a_deadline_of_no_limit_gives_the_least_energy():
    plan = cheapest_within(realistic(), math.inf)
    assert plan.energy_j == iteration_frontier(realistic(), 2)[-1].energy_j
    assert plan.gap < 0.002


@pytest.mark.parametrize("deadline_s", [19.0, -1.0, math.nan])
def test_an_unreachable_deadline_is_refused_with_the_range(deadline_s):
    plans = iteration_frontier(realistic(), 2)
    line = (
        rf"no plan keeps a deadline of {deadline_s:.6g} s: the fastest takes {plans[0].time_s:.6g} s, and after "
        rf"{plans[-1].deadline_s:.6g} s no plan uses less energy"
    )
    with pytest.raises(ConfigError, match=line):
        plans_within(realistic(), [30.0, deadline_s])


def test_no_plan_is_faster_than_the_relaxation_of_its_energy():
    assert fastest_within(realistic(), 1.0, (0.0, 100.0)) is None


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "an instruction has no points"),
        ([(0, 1.0, 1.0), (1, math.nan, 1.0)], "point 1 of an instruction takes nan s and 1.0 J"),
        ([(4, math.inf, 1.0)], "point 4 of an instruction takes inf s"),
        ([(4, -1.0, 1.0)], "point 4 of an instruction takes -1.0 s"),
        ([(0, 1.0, math.nan)], "point 0 of an instruction takes 1.0 s and nan J"),
        ([(0, 1.0, -math.inf)], "point 0 of an instruction takes 1.0 s and -inf J"),
        ([(0, 1e300, 1.0)], r"point 0 of an instruction takes 1e\+300 s and 1.0 J; times must be from 0 to 1e\+09 s"),
        ([(0, 1.0, 1e300)], r"takes 1.0 s and 1e\+300 J; .*energies at most 1e\+15 J; check the GPU's numbers"),
    ],
)
def test_points_that_nothing_can_have_are_refused(points, message):
    with pytest.raises(ArtifactError, match=message) as raised:
        point_set(points)
    assert "\n" not in str(raised.value)


def scaled(problem: Problem, time: float, energy: float) -> Problem:
    """The same problem in other units."""
    sets = {
        id(own): PointSet(own.points, tuple(t * time for t in own.times_s), tuple(e * energy for e in own.energies_j))
        for own in problem.point_sets
    }
    dag = problem.dag
    edges = [
        tuple(tuple((other, transfer_s * time) for other, transfer_s in own) for own in side)
        for side in (dag.predecessors, dag.successors)
    ]
    return Problem(
        dag=Dag(dag.order, *edges),
        point_sets=tuple(sets[id(own)] for own in problem.point_sets),
        waiting_power_w=problem.waiting_power_w * energy / time,
    )


UNITS = [(3, 0), (0, 3), (6, -6), (-6, -9), (7, 10), (1, -1)]


@pytest.mark.parametrize(("k", "m"), UNITS)
def test_units_of_time_and_energy_do_not_change_the_plans(k, m):
    """With one microbatch and other points everywhere no two plans cost the same, so that rounding chooses nothing."""
    random = np.random.default_rng(0)
    points = {
        (stage, d): [tuple(np.array(point) * random.uniform(1, 1.01, 2)) for point in convex(1.0 + stage, 300.0)]
        for stage in range(4)
        for d in (F, B)
    }
    alone = pipeline(4, 1, points, transfer_s=0.01, power_w=10.0)
    plans = iteration_frontier(alone, 9)
    others = iteration_frontier(scaled(alone, 10.0**k, 10.0**m), 9)
    assert [other.points for other in others] == [plan.points for plan in plans]
    for plan, other in zip(plans, others, strict=True):
        assert other.time_s == pytest.approx(plan.time_s * 10.0**k, rel=CLOSE)
        assert other.energy_j == pytest.approx(plan.energy_j * 10.0**m, rel=CLOSE)
        assert other.lower_bound_j == pytest.approx(plan.lower_bound_j * 10.0**m, rel=CLOSE)


@pytest.mark.parametrize(("k", "m"), UNITS)
def test_units_do_not_change_bounds_with_equal_microbatches(k, m):
    plans = plans_within(realistic(), [27.0, 30.0, 33.0])
    others = plans_within(scaled(realistic(), 10.0**k, 10.0**m), [own * 10.0**k for own in (27.0, 30.0, 33.0)])
    for plan, other in zip(plans, others, strict=True):
        assert other.lower_bound_j == pytest.approx(plan.lower_bound_j * 10.0**m, rel=1e-8)
        assert other.energy_j == pytest.approx(plan.energy_j * 10.0**m, rel=1e-3)


@about(10)
@given(tiny_problems(), st.integers(-7, 7), st.integers(-9, 9))
def test_plans_in_any_unit_include_the_fastest_and_the_cheapest(problem, k, m):
    every = all_plans(problem)
    plans = [
        (plan.time_s * 10.0**-k, plan.energy_j * 10.0**-m, plan.lower_bound_j * 10.0**-m)
        for plan in iteration_frontier(scaled(problem, 10.0**k, 10.0**m), 4)
    ]
    assert plans[0][0] == pytest.approx(min(time_s for time_s, _ in every))
    assert plans[0][1] == pytest.approx(best_within(every, plans[0][0]))
    assert plans[-1][1] == pytest.approx(min(energy_j for _, energy_j in every), rel=1e-2)
    for time_s, energy_j, bound_j in plans:
        assert bound_j * (1 - CLOSE) <= best_within(every, time_s) <= energy_j * (1 + CLOSE)


def test_the_last_plan_is_not_lost_to_a_sum_of_floats():
    """0.2 + (0.9 - 0.2) is less than 0.9, and the plan would miss a deadline made of it."""
    points = {(0, F): [(0.1, 10.0)], (0, B): [(0.2, 20.0), (0.9, 10.0)]}
    plans = iteration_frontier(pipeline(1, 1, points), 4)
    assert [(plan.time_s, plan.energy_j) for plan in plans] == [(pytest.approx(0.3), 30.0), (1.0, 20.0)]


@pytest.mark.parametrize("decades", [3, 6, 9, 12])
def test_costs_decades_apart_give_bounded_plans_or_one_error(decades):
    random = np.random.default_rng(decades)
    for _ in range(5):
        sets = {
            (stage, d): [tuple(10.0 ** random.uniform(-decades / 2, decades / 2, 2)) for _ in range(8)]
            for stage in (0, 1)
            for d in (F, B)
        }
        try:
            plans = iteration_frontier(pipeline(2, 4, sets, 0.01, 100.0), 5)
        except ArtifactError as error:
            assert "the solver ended with" in str(error)
        else:
            assert all(0 <= plan.gap < math.inf for plan in plans)


def test_a_solver_that_finds_nothing_is_one_line(monkeypatch):
    monkeypatch.setattr("highspy.Highs.getModelStatus", lambda _: HighsModelStatus.kUnknown)
    with pytest.raises(
        ArtifactError, match=r"no plan was found within .* s: the solver ended with 'Unknown'"
    ) as raised:
        iteration_frontier(realistic(), 3)
    assert "\n" not in str(raised.value)


def test_a_bound_above_its_plan_is_a_fault_and_not_a_gap_of_nothing(monkeypatch):
    bound_j = Starts.bound_j
    monkeypatch.setattr(Starts, "bound_j", lambda starts, time_s: 1.01 * bound_j(starts, time_s))
    with pytest.raises(ArithmeticError, match="a fault of the solver of iteration frontiers, so please report it"):
        iteration_frontier(realistic(), 3)
