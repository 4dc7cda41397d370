"""Plans spliced from two others: never dearer, never late, and closer to the bound where gaps were wide."""

import numpy as np
from helpers.examples import about
from helpers.pipelines import B, F, problem, tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.arrays import Array
from kareus.pipeline.solver.frontier import iteration_frontier
from kareus.pipeline.solver.lanes import Choices, energies_in_time_j
from kareus.pipeline.solver.local_search import search
from kareus.pipeline.solver.local_search.descent import descend
from kareus.pipeline.solver.local_search.splices import splices
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.pipeline.solver.rounding import round_plans


@about(25)
@given(tiny_problems(), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.data())
def test_a_spliced_plan_keeps_its_deadline_and_is_never_dearer(problem, shares, data):
    relaxation = Relaxation(problem)
    fastest_s, slowest_s = relaxation.fastest_s, relaxation.slowest_s
    deadlines_s = fastest_s + (slowest_s - fastest_s) * np.array(sorted(shares))
    before = _rounded(problem, relaxation, deadlines_s)
    others = np.array([[data.draw(st.integers(0, len(p.times_s) - 1)) for _ in range(3)] for p in problem.point_sets])
    after = spliced(problem, before, others, deadlines_s)
    assert (energies_in_time_j(problem, after, deadlines_s) <= energies_in_time_j(problem, before, deadlines_s)).all()


def test_only_wide_gaps_of_long_pipelines_are_narrowed(monkeypatch):
    own = realistic(stages=6, microbatches=40)
    narrowed = _gaps(own)
    monkeypatch.setattr(search, "WIDE", 1.0)
    rounded = _gaps(own)
    monkeypatch.undo()
    is_wide = rounded > search.WIDE
    assert is_wide.sum() >= 3
    assert (narrowed[~is_wide] == rounded[~is_wide]).all()
    assert (narrowed[is_wide] < rounded[is_wide]).all()
    assert narrowed[is_wide].mean() < 0.9 * rounded[is_wide].mean()


def test_plans_that_nothing_lies_between_are_left_as_they_are():
    own = realistic(stages=2, microbatches=2)
    relaxation = Relaxation(own)
    deadlines_s = np.array([relaxation.fastest_s])
    plans = _rounded(own, relaxation, deadlines_s)
    slowest = np.array([[len(points.times_s) - 1] for points in own.point_sets])
    assert (spliced(own, plans, slowest[:, :0], deadlines_s) == plans).all()


def spliced(problem: Problem, plans: Choices, others: Choices, deadlines_s: Array) -> Choices:
    return descend(problem, plans, deadlines_s, splices(problem, np.hstack([plans, others])))


def _gaps(problem: Problem) -> Array:
    return np.array([plan.gap for plan in iteration_frontier(problem, 20)])


def realistic(stages: int, microbatches: int) -> Problem:
    last = stages - 1
    points = {(s, F): _over_clocks(0.134, 250.0) for s in range(last)} | {(last, F): _over_clocks(0.131, 245.0)}
    points |= {(s, B): _over_clocks(0.36, 690.0) for s in range(last)} | {(last, B): _over_clocks(0.341, 660.0)}
    return problem(stages, microbatches, points, power_w=680.0 * stages)


def _over_clocks(fastest_s: float, dearest_j: float) -> list[tuple[float, float]]:
    slower = 1 + np.linspace(0, 1, 12) ** 1.3 / 3
    return [(fastest_s * s, dearest_j * (0.55 + 0.45 / s**3)) for s in slower]


def _rounded(problem: Problem, relaxation: Relaxation, deadlines_s: Array):
    relaxed = [relaxation.solve(deadline_s * (1 + 1e-11)).times_s for deadline_s in deadlines_s]
    return round_plans(problem, np.column_stack(relaxed), deadlines_s)
