"""Plans that a beam finds: in time whatever guides it, the best of tiny pipelines, and near the bound of real ones."""

import numpy as np
from helpers.examples import about
from helpers.pipelines import all_plans, tiny_problems
from hypothesis import given
from hypothesis import strategies as st

from kareus.pipeline.solver.beam import Guide, guided_plans
from kareus.pipeline.solver.starts import Starts


@about(30)
@given(tiny_problems(), st.floats(0, 1), st.data())
def test_a_plan_is_in_time_whatever_guides_it(problem, share, data):
    deadline_s = problem.cost([0] * len(problem.point_sets))[0] * (1 + share)
    price, edges = st.floats(0, 100), [(i, a) for i, own in enumerate(problem.dag.successors) for a, _ in own]
    guide = Guide(
        seconds=np.array([[data.draw(st.floats(p.times_s[0], p.times_s[-1]))] for p in problem.point_sets]),
        prices_w={edge: np.array([data.draw(price)]) for edge in edges},
        worth_w=np.array([[data.draw(price)] for _ in problem.point_sets]),
        deadline_w=np.array([data.draw(price)]),
    )
    plan = guided_plans(problem, guide, np.array([deadline_s]))[:, 0].tolist()
    assert problem.cost(plan)[0] <= deadline_s


@about(30)
@given(tiny_problems(), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_beams_find_the_best_plan_of_tiny_pipelines(problem, shares):
    plans, fastest_s = all_plans(problem), problem.cost([0] * len(problem.point_sets))[0]
    deadlines_s = fastest_s * (1 + np.array(sorted(shares)))
    for choice, deadline_s in zip(Starts(problem).plans(deadlines_s).T.tolist(), deadlines_s, strict=True):
        best_j = min(energy_j for time_s, energy_j in plans if time_s <= deadline_s)
        assert problem.cost(choice)[1] <= best_j * (1 + 1e-9)
