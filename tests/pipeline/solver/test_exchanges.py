"""Exchanges of one instruction's point: never dearer, never late, and as many as the effort allows."""

import numpy as np
from helpers.examples import about
from helpers.pipelines import B, F, problem, tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.pipeline.solver.lanes import energies_in_time_j
from kareus.pipeline.solver.local_search.descent import descend
from kareus.pipeline.solver.local_search.exchanges import exchanges


@about(25)
@given(tiny_problems(), st.lists(st.floats(0, 2), min_size=1, max_size=4))
def test_exchanges_keep_deadlines_and_never_cost_more(problem, shares):
    before = np.zeros((len(problem.point_sets), len(shares)), dtype=np.int64)
    fastest_s, _ = problem.cost(before[:, 0].tolist())
    deadlines_s = fastest_s * (1 + np.array(shares))
    after = descend(problem, before, deadlines_s, exchanges(problem))
    energies_j = energies_in_time_j(problem, after, deadlines_s)
    assert np.isfinite(energies_j).all()
    assert (energies_j <= energies_in_time_j(problem, before, deadlines_s)).all()


def test_one_instruction_gives_its_time_to_another():
    forward, backward = [(1.0, 10.0), (1.2, 8.0)], [(2.0, 20.0), (2.2, 15.0)]
    own = problem(1, 1, {(0, F): forward, (0, B): backward})
    after = descend(own, np.array([[1], [0]]), np.array([3.2]), exchanges(own))
    assert after[:, 0].tolist() == [0, 1]


def test_long_pipelines_get_no_exchange():
    points = {(0, F): [(1.0, 10.0), (1.2, 8.0)], (0, B): [(2.0, 20.0)]}
    assert exchanges(problem(1, 93, points)).steps == 1
    assert exchanges(problem(1, 94, points)).steps == 0
