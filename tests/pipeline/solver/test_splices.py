"""Plans spliced from two others: never dearer, never late, and closer to the bound where gaps were wide."""

import numpy as np
from helpers.examples import about
from helpers.pipelines import B, F, problem, tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.pipeline.solver import frontier
from kareus.pipeline.solver.lanes import energies_in_time_j
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.splices import spliced
from kareus.pipeline.solver.starts import Starts


@about(25)
@given(tiny_problems(), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.data())
def test_a_spliced_plan_keeps_its_deadline_and_is_never_dearer(problem, shares, data):
    starts = Starts(problem)
    fastest_s, slowest_s = starts.relaxation.fastest_s, starts.relaxation.slowest_s
    deadlines_s = fastest_s + (slowest_s - fastest_s) * np.array(sorted(shares))
    before = starts.plans(deadlines_s)
    others = np.array([[data.draw(st.integers(0, len(p.times_s) - 1)) for _ in range(3)] for p in problem.point_sets])
    after = spliced(problem, before, deadlines_s, np.hstack([before, others]))
    assert (energies_in_time_j(problem, after, deadlines_s) <= energies_in_time_j(problem, before, deadlines_s)).all()


def test_only_wide_gaps_of_long_pipelines_are_narrowed(monkeypatch):
    own = realistic(stages=6, microbatches=16)
    monkeypatch.setattr(frontier, "WIDE", 1.0)
    before_j, bounds_j = _searched(own)
    gaps = before_j / bounds_j - 1
    is_wide = gaps > np.median(gaps)
    monkeypatch.setattr(frontier, "WIDE", float(np.median(gaps)))
    narrowed_j, _ = _searched(own)
    assert (narrowed_j[~is_wide] == before_j[~is_wide]).all()
    assert (narrowed_j[is_wide] <= before_j[is_wide]).all()
    assert narrowed_j[is_wide].sum() < before_j[is_wide].sum()


def _searched(problem: Problem):
    """Energies of plans for eight deadlines, and bounds on them; optima depend on what was solved before."""
    starts = Starts(problem)
    deadlines_s = np.linspace(*starts.range_s(), 8)
    energies_j = energies_in_time_j(problem, frontier.search(starts, deadlines_s), deadlines_s)
    return energies_j, np.array([starts.bound_j(deadline_s) for deadline_s in deadlines_s])


def test_plans_that_nothing_lies_between_are_left_as_they_are():
    own = realistic(stages=2, microbatches=2)
    starts = Starts(own)
    deadlines_s = np.array([starts.relaxation.fastest_s])
    plans = starts.plans(deadlines_s)
    assert (spliced(own, plans, deadlines_s, plans) == plans).all()


def realistic(stages: int, microbatches: int) -> Problem:
    last = stages - 1
    points = {(s, F): _over_clocks(0.134, 250.0) for s in range(last)} | {(last, F): _over_clocks(0.131, 245.0)}
    points |= {(s, B): _over_clocks(0.36, 690.0) for s in range(last)} | {(last, B): _over_clocks(0.341, 660.0)}
    return problem(stages, microbatches, points, power_w=680.0 * stages)


def _over_clocks(fastest_s: float, dearest_j: float) -> list[tuple[float, float]]:
    slower = 1 + np.linspace(0, 1, 12) ** 1.3 / 3
    return [(fastest_s * s, dearest_j * (0.55 + 0.45 / s**3)) for s in slower]
