"""Predictions of layouts: that they are those of `kareus.predict`, and that no plan undercuts a bound."""

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.advise.bounds import computing_bound
from kareus.advise.feasible import sort_layouts
from kareus.advise.layouts import Constraints, layouts_of
from kareus.advise.planning import layout_problem, plan_layout
from kareus.advise.predictions import LayoutPredictor
from kareus.advise.prices import InstructionPrices
from kareus.fidelity.workload_prediction import predict
from kareus.model.config import Sharding
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.workload.compose import compose


@pytest.fixture(scope="module")
def found():
    base = compose(["model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "sequence_length=2048"], CONFIG)[0].workload
    costs = InstructionPrices(base)
    candidates = sort_layouts(base, layouts_of(base, 8, 32, Constraints(microbatch_size=(1, 2)))).candidates
    chosen = candidates[:: len(candidates) // 7]
    chosen += [one for one in candidates if one.layout.sharding is Sharding.FULL][:1]
    chosen += [one for one in candidates if one.layout.chunks > 1 and one.layout.tp > 1][:1]
    return LayoutPredictor(base, costs), costs, chosen


def test_sequential_is_what_predict_says(found):
    predictor, _, candidates = found
    for one in candidates:
        expected = predict(one.workload)
        own, bubble_share = predictor.sequential(one.workload)
        assert own.time_s == pytest.approx(expected.time_s, rel=1e-6), one.layout.words
        assert own.energy_j == pytest.approx(expected.energy_j, rel=1e-4), one.layout.words
        bubbles_s = sum(stage.bubble_s for stage in expected.stages) / len(expected.stages)
        assert bubble_share == pytest.approx(bubbles_s / expected.time_s, abs=1e-4)


def test_no_plan_undercuts_a_bound(found):
    predictor, costs, candidates = found
    for one in candidates:
        bound = predictor.bound(one.workload)
        prediction = predictor.predict(one, bound)
        for below in (bound, predictor.bound_without_update(one.workload), computing_bound(one.workload, costs)):
            for plan in plan_layout(predictor, prediction, deadlines=3):
                assert plan.time_s >= below.fastest_s * (1 - 1e-9), one.layout.words
                at = np.searchsorted(below.times_s, plan.time_s * (1 + 1e-9), side="right") - 1
                assert plan.energy_j >= below.between_j[at] * (1 - 1e-9), one.layout.words


def test_bounds_are_close_to_the_relaxation(found):
    predictor, _, candidates = found
    for one in [one for one in candidates if one.layout.chunks == 1][:6]:
        bound = predictor.bound(one.workload)
        fastest_s = Relaxation(layout_problem(predictor, one.workload)).fastest_s
        assert 0.85 < bound.fastest_s / fastest_s <= 1 + 1e-9, one.layout.words
