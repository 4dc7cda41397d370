"""Many plans at once against one plan at a time, and what reclaiming does to them."""

import numpy as np
import pytest
from helpers.examples import about
from helpers.pipelines import one_f_one_b, tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.pipeline.solver.dag import build_dag, earliest_starts, latest_ends, makespan
from kareus.pipeline.solver.lanes import Choices, energies_in_time_j, mirrored, parts, reclaim

drawn_times = st.lists(st.integers(1, 50), min_size=24, max_size=24)


def drawn_choices(problem, data, lanes: int) -> Choices:
    draw = [[data.draw(st.integers(0, len(p.times_s) - 1)) for _ in range(lanes)] for p in problem.point_sets]
    return np.array(draw)


def test_two_stages_by_hand():
    instructions = one_f_one_b(2, 2)
    times_s = np.array([[2.0 if i.key.direction == "backward" else 1.0] for i in instructions])
    ends_s = latest_ends(build_dag(instructions, [0.5]), times_s, np.array([10.0]))
    assert ends_s[:, 0].tolist() == [1, 4, 8, 10, 2.5, 4.5, 5.5, 7.5]


@given(drawn_times, st.integers(0, 24 - 1), st.integers(0, 5))
def test_an_instruction_can_end_at_its_latest_end_and_no_later(times, number, extra):
    instructions = one_f_one_b(3, 4)
    times_s = [float(t) for t in times]
    dag = build_dag(instructions, [1.0, 2.0])
    deadline_s = makespan(dag, times_s) + extra
    column = np.array(times_s)[:, np.newaxis]
    latest_s = latest_ends(dag, column, np.array([deadline_s]))[number, 0]
    earliest_s = earliest_starts(dag, times_s)[number]
    full = [*times_s[:number], latest_s - earliest_s, *times_s[number + 1 :]]
    over = [*times_s[:number], latest_s - earliest_s + 1, *times_s[number + 1 :]]
    assert makespan(dag, full) <= deadline_s < makespan(dag, over)


@about(25)
@given(tiny_problems(), st.data())
def test_lanes_cost_exactly_what_single_plans_cost(problem, data):
    choices = drawn_choices(problem, data, 3)
    costs = [problem.cost(choice) for choice in choices.T.tolist()]
    exactly_s = np.array([time_s for time_s, _ in costs])
    energies_j = energies_in_time_j(problem, choices, exactly_s)
    assert energies_j.tolist() == pytest.approx([energy_j for _, energy_j in costs])
    assert np.isinf(energies_in_time_j(problem, choices, np.nextafter(exactly_s, 0.0))).all()
    assert energies_in_time_j(mirrored(problem), choices, exactly_s * 2).tolist() == pytest.approx(energies_j.tolist())


@about(30)
@given(tiny_problems(), st.floats(1e-9, 1), st.data())
def test_reclaiming_keeps_the_deadline_and_leaves_no_slack(problem, share, data):
    deadline_s = problem.cost([0] * len(problem.point_sets))[0] * (1 + share)
    in_time = reclaim(problem, drawn_choices(problem, data, 2), np.full(2, deadline_s))
    assert all(problem.cost(choice)[0] <= deadline_s * (1 + 1e-12) for choice in in_time.T.tolist())
    for choice in reclaim(problem, in_time, np.full(2, deadline_s)).T.tolist():
        for i, points in enumerate(problem.point_sets):
            if choice[i] + 1 < len(points.times_s):
                slower = [*choice[:i], choice[i] + 1, *choice[i + 1 :]]
                assert problem.cost(slower)[0] > deadline_s * (1 - 1e-12)


@given(st.integers(1, 50), st.integers(1, 3_000_000))
def test_parts_cover_all_plans_once(plans, cells_each):
    covered = [n for part in parts(plans, cells_each) for n in range(plans)[part]]
    assert covered == list(range(plans))
