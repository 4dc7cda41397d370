"""The linear program against one written anew for SciPy: epigraphs of the hull instead of weights."""

import itertools
import math

import numpy as np
import pytest
from helpers.examples import about
from helpers.pipelines import B, F, problem, tiny_problems
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from kareus.pipeline.solver.problem import point_set
from kareus.pipeline.solver.relaxation import Relaxation


def linprog_energy(problem, deadline_s: float) -> float:
    """Variables: start, time and energy of each instruction, then the makespan; a cut for every pair of points."""
    n = len(problem.point_sets)
    rows, bounds = [], []

    def at_most(entries, bound):
        row = np.zeros(3 * n + 1)
        for column, value in entries:
            row[column] += value
        rows.append(row)
        bounds.append(bound)

    for i, points in enumerate(problem.point_sets):
        at_most([(i, 1), (n + i, 1), (3 * n, -1)], 0)
        for before, transfer_s in problem.dag.predecessors[i]:
            at_most([(before, 1), (n + before, 1), (i, -1)], -transfer_s)
        costs = list(zip(points.times_s, points.energies_j, strict=True))
        for (t0, e0), (t1, e1) in itertools.combinations(costs, 2):
            slope = (e1 - e0) / (t1 - t0)
            if all(e >= e0 + slope * (t - t0) - 1e-9 for t, e in costs):  # a line below all points
                at_most([(n + i, slope), (2 * n + i, -1)], slope * t0 - e0)
    limits = [(0, None)] * n
    limits += [(points.times_s[0], points.times_s[-1]) for points in problem.point_sets]
    limits += [(points.energies_j[-1], None) for points in problem.point_sets]
    limits += [(0, None if math.isinf(deadline_s) else deadline_s)]
    objective = [0] * 2 * n + [1] * n + [problem.waiting_power_w]
    solved = linprog(objective, A_ub=np.array(rows), b_ub=bounds, bounds=limits)
    assert solved.status == 0, solved.message
    return float(solved.fun)


@about(25)
@given(tiny_problems(), st.floats(0, 1))
def test_its_value_is_that_of_an_independent_formulation(problem, share):
    fastest_s, _ = problem.cost([0] * len(problem.point_sets))
    slowest_s, _ = problem.cost([len(points.times_s) - 1 for points in problem.point_sets])
    deadline_s = fastest_s + share * (slowest_s - fastest_s) + 1e-9
    relaxation = Relaxation(problem)
    assert relaxation.solve(deadline_s).energy_j == pytest.approx(linprog_energy(problem, deadline_s), rel=1e-6)
    assert relaxation.solve(math.inf).energy_j == pytest.approx(linprog_energy(problem, math.inf), rel=1e-6)


def test_a_warm_start_changes_no_value():
    points = {(s, d): [(1.0 + k + s / 7, 90.0 / (1 + k)) for k in range(4)] for s in (0, 1) for d in (F, B)}
    pipeline = problem(2, 4, points, transfer_s=0.1, power_w=3.0)
    fastest_s, _ = pipeline.cost([0] * 16)
    warm = Relaxation(pipeline)
    for deadline_s in [fastest_s * share for share in (3.0, 1.1, 1.7, 1.0, 2.0)]:
        assert warm.solve(deadline_s).energy_j == pytest.approx(Relaxation(pipeline).solve(deadline_s).energy_j)


def test_a_deadline_below_the_least_makespan_is_refused():
    pipeline = problem(1, 1, {(0, F): [(1.0, 5.0)], (0, B): [(2.0, 5.0)]})
    assert Relaxation(pipeline).solve(3.0).time_s == pytest.approx(3.0)
    with pytest.raises(ValueError, match=r"no plan within 2\.9 s"):
        Relaxation(pipeline).solve(2.9)


def test_half_way_between_two_points_costs_half_way():
    pipeline = problem(1, 1, {(0, F): [(1.0, 5.0), (3.0, 1.0)], (0, B): [(2.0, 5.0)]}, power_w=1.5)
    relaxed = Relaxation(pipeline).solve(4.0)
    assert relaxed.times_s.tolist() == pytest.approx([2.0, 2.0])
    assert relaxed.energy_j == pytest.approx(3.0 + 5.0 + 1.5 * 4.0)  # a second saves 2 J and costs 1.5 J of waiting


def test_the_hull_leaves_out_points_above_its_chords():
    points = point_set([(0, 1.0, 10.0), (1, 2.0, 9.0), (2, 3.0, 2.0), (3, 4.0, 1.5), (4, 5.0, 1.0)])
    assert points.hull == (0, 2, 4)  # 1 lies above the chord from 0 to 2, 3 on the chord from 2 to 4


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12))
def test_a_point_set_keeps_exactly_the_undominated_points(costs):
    kept = point_set([(n, float(t), float(e)) for n, (t, e) in enumerate(costs)])
    undominated = {c for c in costs if not any(o != c and o[0] <= c[0] and o[1] <= c[1] for o in costs)}
    assert list(zip(kept.times_s, kept.energies_j, strict=True)) == sorted(undominated)
    assert [costs[n] for n in kept.points] == sorted(undominated)


@about(25)
@given(tiny_problems(), st.floats(0, 1), st.floats(0, 1))
def test_a_supporting_line_bounds_the_energy_at_every_deadline(problem, share, other):
    relaxation = Relaxation(problem)
    solved_s, other_s = (
        relaxation.fastest_s + s * (relaxation.slowest_s - relaxation.fastest_s) + 1e-9 for s in (share, other)
    )
    relaxed = relaxation.solve(solved_s)
    least_j = linprog_energy(problem, solved_s)
    assert relaxed.bound_j(solved_s) == pytest.approx(least_j, rel=1e-6)
    assert relaxed.bound_j(other_s) <= linprog_energy(problem, other_s) + 1e-6 * least_j
    assert relaxed.slope_w <= 0


@about(25)
@given(tiny_problems(), st.floats(0, 1))
def test_the_bound_reaches_an_energy_at_its_least_time(problem, share):
    relaxation = Relaxation(problem)
    most_j = relaxation.solve(relaxation.fastest_s * (1 + 1e-9)).energy_j
    least_j = relaxation.solve(math.inf).energy_j
    energy_j = least_j + share * (most_j - least_j)
    time_s = relaxation.time_s(energy_j)
    assert time_s is not None
    assert linprog_energy(problem, time_s * (1 + 1e-6)) <= energy_j * (1 + 1e-6)
    if time_s > relaxation.fastest_s * (1 + 1e-4):
        assert linprog_energy(problem, time_s * (1 - 1e-4)) > energy_j * (1 - 1e-6)
    assert relaxation.time_s(least_j * 0.99) is None
    assert relaxation.time_s(most_j * 1.01) == relaxation.fastest_s
