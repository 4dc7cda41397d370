"""Iteration frontiers against the enumeration of every plan of tiny pipelines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import B, F, all_plans, problem, tiny_problems

from kareus.pareto import pareto_mask
from kareus.pipeline.problem import Problem
from kareus.pipeline.rounding import TOLERANCE, available_s, plan_within, repair
from kareus.pipeline.solver import PlannedIteration, cheapest_within, fastest_within, iteration_frontier

CLOSE = 1e-9


def best_within(plans: list[tuple[float, float]], deadline_s: float) -> float:
    return min(energy_j for time_s, energy_j in plans if time_s <= deadline_s * (1 + CLOSE))


def choice_of(problem: Problem, plan: PlannedIteration) -> list[int]:
    return [points.points.index(p) for points, p in zip(problem.point_sets, plan.points, strict=True)]


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.integers(1, 6))
def test_every_plan_is_made_of_real_points_keeps_its_deadline_and_costs_what_they_cost(problem, deadlines):
    for plan in iteration_frontier(problem, deadlines):
        assert problem.cost(choice_of(problem, plan)) == (plan.time_s, plan.energy_j)
        assert plan.time_s <= plan.deadline_s * (1 + CLOSE)


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.integers(1, 6))
def test_the_bound_is_below_the_best_of_all_plans_which_is_below_the_plan(problem, deadlines):
    plans = all_plans(problem)
    for plan in iteration_frontier(problem, deadlines):
        best_j = best_within(plans, plan.time_s)
        assert plan.lower_bound_j <= best_j * (1 + CLOSE)
        assert best_j <= plan.energy_j * (1 + CLOSE)
        assert plan.gap == pytest.approx(plan.energy_j / plan.lower_bound_j - 1)
        assert plan.gap >= 0


@settings(max_examples=80, deadline=None)
@given(tiny_problems())
def test_the_first_plan_is_the_fastest_and_of_those_the_cheapest(problem):
    plans = all_plans(problem)
    fastest_s = min(time_s for time_s, _ in plans)
    first = iteration_frontier(problem, 3)[0]
    assert first.time_s == pytest.approx(fastest_s)
    assert first.energy_j == pytest.approx(best_within(plans, fastest_s))


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.integers(2, 8))
def test_no_plan_dominates_another_and_times_rise(problem, deadlines):
    plans = iteration_frontier(problem, deadlines)
    costs = [(plan.time_s, plan.energy_j) for plan in plans]
    assert pareto_mask(costs).all()
    assert costs == sorted(costs)


@settings(max_examples=40, deadline=None)
@given(tiny_problems())
def test_the_same_problem_has_the_same_frontier(problem):
    assert iteration_frontier(problem, 4) == iteration_frontier(problem, 4)


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.floats(0, 1), st.data())
def test_a_repaired_plan_is_in_time_wherever_it_started(problem, share, data):
    choice = [data.draw(st.integers(0, len(points.times_s) - 1)) for points in problem.point_sets]
    fastest_s, _ = problem.cost([0] * len(choice))
    deadline_s = fastest_s * (1 + share)
    repaired = repair(problem, choice, deadline_s)
    assert problem.cost(repaired)[0] <= deadline_s * (1 + CLOSE)
    assert all(after <= before for after, before in zip(repaired, choice, strict=True))


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.floats(0, 1))
def test_no_instruction_of_a_plan_is_faster_than_its_slack_demands(problem, share):
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    deadline_s = fastest_s * (1 + share)
    choice = plan_within(problem, [points.times_s[0] for points in problem.point_sets], deadline_s)
    windows_s = available_s(problem, choice, deadline_s)
    for points, now, window_s in zip(problem.point_sets, choice, windows_s, strict=True):
        assert now + 1 == len(points.times_s) or points.times_s[now + 1] > window_s * (1 - TOLERANCE)


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.floats(0, 1.5))
def test_a_plan_for_a_deadline_keeps_it_and_its_bound_is_that_of_the_deadline(problem, share):
    plans = all_plans(problem)
    deadline_s = min(time_s for time_s, _ in plans) * (1 + share)
    plan = cheapest_within(problem, deadline_s)
    assert plan.time_s <= deadline_s * (1 + CLOSE)
    assert problem.cost(choice_of(problem, plan)) == (plan.time_s, plan.energy_j)
    assert plan.lower_bound_j <= best_within(plans, deadline_s) * (1 + CLOSE)
    assert plan.energy_j >= best_within(plans, plan.time_s) * (1 - CLOSE)


@settings(max_examples=80, deadline=None)
@given(tiny_problems(), st.floats(0, 1))
def test_a_plan_for_an_energy_keeps_it_and_is_faster_than_the_plan_it_starts_from(problem, share):
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
    return problem(3, 6, points, transfer_s=0.01, power_w=100.0)


def test_a_realistic_pipeline_is_planned_within_a_hundredth_of_its_bound():
    plans = iteration_frontier(realistic(), 10)
    assert len(plans) == 10
    assert max(plan.gap for plan in plans) < 0.01


def test_a_deadline_between_two_plans_costs_hardly_more_than_its_bound():
    coarse = iteration_frontier(realistic(), 4)
    deadline_s = coarse[2].time_s * (1 - 1e-6)
    plan = cheapest_within(realistic(), deadline_s)
    assert plan.energy_j < coarse[1].energy_j * 0.98
    assert plan.gap < 0.01


def test_an_energy_between_two_plans_is_spent_in_hardly_more_time_than_the_next_deadline_takes():
    coarse = iteration_frontier(realistic(), 4)
    energy_j = coarse[1].energy_j * (1 - 1e-6)
    plan = fastest_within(realistic(), energy_j, (coarse[1].time_s, coarse[2].time_s))
    assert plan is not None
    assert plan.energy_j <= energy_j
    assert plan.time_s < coarse[1].time_s + 0.1 * (coarse[2].time_s - coarse[1].time_s)


def test_waiting_that_costs_more_than_slowness_saves_leaves_one_plan():
    points = {(0, F): [(1.0, 10.0), (2.0, 9.0)], (0, B): [(1.0, 10.0), (2.0, 9.0)]}
    (only,) = iteration_frontier(problem(1, 2, points, power_w=5.0), 10)
    assert (only.time_s, only.energy_j, only.gap) == (4.0, 60.0, 0.0)
