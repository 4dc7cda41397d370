"""Trades of time between kinds of instructions: never dearer, never late, and found where single moves find nothing."""

import numpy as np
from helpers.examples import about
from helpers.pipelines import B, F, problem, tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.pipeline.solver.lanes import energies_in_time_j
from kareus.pipeline.solver.local_search.descent import descend
from kareus.pipeline.solver.local_search.trades import trades
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation


@about(25)
@given(tiny_problems(), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_a_traded_plan_keeps_its_deadline_and_is_never_dearer(problem: Problem, shares: list[float]) -> None:
    relaxation = Relaxation(problem)
    fastest_s, slowest_s = relaxation.fastest_s, relaxation.slowest_s
    deadlines_s = fastest_s + (slowest_s - fastest_s) * np.array(sorted(shares))
    before = np.zeros((len(problem.point_sets), len(deadlines_s)), dtype=np.int64)
    after = descend(problem, before, deadlines_s, trades(problem))
    energies_j = energies_in_time_j(problem, after, deadlines_s)
    assert np.isfinite(energies_j).all()
    assert (energies_j <= energies_in_time_j(problem, before, deadlines_s)).all()


def test_all_microbatches_trade_time_between_kinds_at_once() -> None:
    """Both slow down by as much, and a forward saves less by it: at any deadline backwards should have the time."""
    forward, backward = [(1.0, 10.0), (1.2, 8.0)], [(2.0, 20.0), (2.2, 15.0)]
    own = problem(1, 3, {(0, F): forward, (0, B): backward})
    is_forward = np.array([points is own.point_sets[0] for points in own.point_sets])
    before = np.where(is_forward, 1, 0)[:, np.newaxis]
    time_s, energy_j = own.cost(before[:, 0].tolist())
    after = descend(own, before, np.array([time_s]), trades(own))
    assert (after[:, 0] == np.where(is_forward, 0, 1)).all()
    assert own.cost(after[:, 0].tolist())[1] == energy_j - 3 * (5 - 2)
