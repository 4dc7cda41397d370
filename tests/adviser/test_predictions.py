"""Predictions of layouts: that they are those of `kareus.predict`, and that no plan undercuts a bound."""

import contextlib
import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.adviser.bounds import computing_bound
from kareus.adviser.feasible import sort_layouts
from kareus.adviser.layouts import Constraints, layouts_of
from kareus.adviser.planning import layout_problem, plan_layout
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import FASTEST, PRICES_W, InstructionPrices
from kareus.errors import RefusedWorkloadError
from kareus.gpu_model.model import Tally, operators_alone, run_tally, tally
from kareus.gpu_model.thermal import sustained_j
from kareus.gpu_model.waiting import effective_energy_j, least_waiting_w
from kareus.graph.recomputation import Recomputation
from kareus.graph.records import Direction, instruction_directions
from kareus.model.parallelism import Sharding
from kareus.pipeline.solver.dag import latest_ends
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.prediction.workload_prediction import predict
from kareus.profile.programs import Execution, StageShape, instruction_program, laid_out_shapes, weights_of
from kareus.workload.compose import compose
from kareus.workload.resolve import checked_but_for_memory


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


def test_experts_over_trays_of_an_nvlink_domain_are_on_links_alone():
    """Of four GPUs a tray: a job of sixteen is in one domain, whatever part of it is priced."""
    few = ("model=qwen3-30b-a3b", "model.num_layers=2", "gpu=gb200", "software=megatron-core", "sequence_length=2048")
    base = compose(few, CONFIG)[0].workload
    asked = Constraints(tp=(1,), pp=(1,), ep=(8,), microbatch_size=(1,))
    (candidate, *_) = sort_layouts(base, layouts_of(base, 16, 16, asked)).candidates
    priced, _ = LayoutPredictor(base, InstructionPrices(base)).sequential(candidate.workload)
    assert priced.time_s == pytest.approx(predict(candidate.workload).time_s, rel=1e-6)


def test_weights_shared_out_within_nodes_are_priced_whatever_came_before():
    """Operator graphs know of no sharding, nor of the replicas that share."""
    few = ("model=qwen3-1.7b", "model.num_layers=2", "gpu=h100-sxm5-80gb", "sequence_length=2048")
    base = compose(few, CONFIG)[0].workload
    asked = Constraints(tp=(1,), pp=(1,), shards=(8,), sharding=(Sharding.FULL,), microbatch_size=(1,))
    (candidate, *_) = sort_layouts(base, layouts_of(base, 16, 16, asked)).candidates
    priced, _ = LayoutPredictor(base, InstructionPrices(base)).sequential(candidate.workload)
    assert priced.time_s == pytest.approx(predict(candidate.workload).time_s, rel=1e-6)


@pytest.mark.parametrize("layers", [2, 3, 9, 40])
def test_bounds_of_computation_are_those_of_whole_programs(layers):
    """Whatever their depth, and where the power limit slows them down; asked for together with others."""
    few = ("model=llama3.3-70b", "gpu=h100-sxm5-80gb", "gpu.power_limit_w=420", "parallelism.tp=8", "parallelism.pp=1")
    base = checked_but_for_memory(compose([*few, "microbatch_size=1"], CONFIG)[0].workload)
    costs = InstructionPrices(base).of(base)
    shape = StageShape(layers=layers, first=True, last=True)
    way = Direction.BACKWARD, Recomputation.FULL
    costs.compute([(replace(shape, layers=deep), *way) for deep in (1, layers, 80)])
    program = instruction_program(
        costs.graphs,
        shape,
        Direction.BACKWARD,
        Execution.SEQUENTIAL,
        recomputation=Recomputation.FULL,
        default_sm_count=base.default_collective_sm_count,
        software=base.software,
    )
    steps = tally(program)
    alone = Tally(operators_alone(steps.blocks), operators_alone(steps.outer), whole_instruction=True)
    ran = run_tally(base.gpu, alone, costs.clocks, {})
    assert ran.time_s[-1] > 1.01 * run_tally(replace(base.gpu, power_limit_w=700), alone, costs.clocks, {}).time_s[-1]
    lasting_j = sustained_j(base.gpu, ran.energy_j, ran.time_s)
    effective_j = effective_energy_j(lasting_j, ran.time_s, least_waiting_w(base.gpu))
    priced = costs.computing(shape, *way)
    for price_w, time_s, cost_j in zip(PRICES_W, priced.time_s, priced.effective_j, strict=True):
        assert cost_j + price_w * time_s == pytest.approx((effective_j + price_w * ran.time_s).min(), rel=1e-9)


@pytest.mark.parametrize("recomputation", list(Recomputation))
@pytest.mark.parametrize("sharding", [Sharding.OPTIMIZER, Sharding.FULL])
def test_instructions_with_dense_blocks_are_those_of_whole_programs(recomputation, sharding):
    """Whatever the blocks with experts beside them, with collectives and without."""
    few = ("model=deepseek-v3", "gpu=h100-sxm5-80gb", "parallelism.tp=1", "parallelism.pp=1", "parallelism.ep=8")
    more = ("parallelism.dp=16", f"parallelism.sharding={sharding}", f"recomputation={recomputation}")
    base = checked_but_for_memory(compose([*few, *more, "microbatch_size=1"], CONFIG)[0].workload)
    costs = InstructionPrices(base).of(base)
    for layers, direction in itertools.product((3, 5, 8, 14), (Direction.FORWARD, Direction.BACKWARD)):
        shape = StageShape(layers=layers, first=True, last=False, dense=3)
        weights = weights_of(base, 0, shape, base.default_collective_sm_count)
        program = instruction_program(
            costs.graphs,
            shape,
            direction,
            Execution.SEQUENTIAL,
            recomputation=recomputation,
            default_sm_count=base.default_collective_sm_count,
            software=base.software,
            weights=weights,
        )
        steps = tally(program)
        ran = run_tally(costs.base.gpu, steps, costs.clocks, {})
        priced = costs.instruction(shape, direction, recomputation, weights, split_backward=False).sequential
        np.testing.assert_allclose(priced.time_s, ran.time_s, rtol=1e-12)
        alone = Tally(operators_alone(steps.blocks), operators_alone(steps.outer), whole_instruction=True)
        fastest_s = run_tally(costs.base.gpu, alone, costs.clocks, {}).time_s.min()
        assert costs.computing(shape, direction, recomputation).time_s[FASTEST] == pytest.approx(fastest_s, rel=1e-12)


def test_no_plan_undercuts_a_bound(found):
    predictor, costs, candidates = found
    for one in candidates:
        bound = predictor.bound(one.workload)
        plans = plan_layout(predictor, predictor.predict(one, bound), deadlines=3)
        for below in (bound, predictor.bound_without_update(one.workload), computing_bound(one.workload, costs)):
            for plan in plans:
                assert plan.time_s >= below.fastest_s * (1 - 1e-9), one.layout.words
                at = np.searchsorted(below.times_s, plan.time_s * (1 + 1e-9), side="right") - 1
                assert plan.energy_j >= below.between_j[at] * (1 - 1e-9), one.layout.words


@pytest.mark.parametrize(("model", "ep"), [("qwen3-30b-a3b", 1), ("qwen3-30b-a3b", 8), ("llama3.1-8b", 1)])
def test_collectives_of_weights_only_raise_a_bound(model, ep):
    """With experts, which have collectives of their own where GPUs share them out, and without; also of stages."""
    few = (f"model={model}", "model.num_layers=4", "gpu=h100-sxm5-80gb", "sequence_length=2048")
    base = compose(few, CONFIG)[0].workload
    asked = Constraints(cp=(1,), tp=(1, 2), pp=(1, 2), ep=(ep,), sharding=(Sharding.FULL,), microbatch_size=(1, 4))
    costs = InstructionPrices(base)
    predictor = LayoutPredictor(base, costs)
    candidates = sort_layouts(base, layouts_of(base, 16, 64, asked)).candidates
    assert {one.workload.parallelism.pp for one in candidates} == {1, 2}
    for one in candidates:
        computing, alone, gathering = (
            computing_bound(one.workload, costs),
            predictor.bound_beside_weights(one.workload),
            predictor.bound_without_update(one.workload),
        )
        for below, above in ((computing, alone), (alone, gathering)):
            assert below.fastest_s <= above.fastest_s * (1 + 1e-9), one.layout.words
            assert below.floor_j <= above.floor_j * (1 + 1e-9), one.layout.words
            at = np.searchsorted(below.times_s, above.times_s * (1 + 1e-9), side="right") - 1
            assert (below.between_j[at] <= above.energies_j * (1 + 1e-9)).all(), one.layout.words


@pytest.mark.parametrize(
    ("model", "layers", "gpu"),
    [("qwen3-30b-a3b", 6, "h100-sxm5-80gb"), ("deepseek-v3", 5, "h200"), ("deepseek-v3", 4, "a100-sxm4-80gb")],
)
def test_no_instruction_that_gathers_experts_costs_less_than_its_bound(model, layers, gpu):
    """Of layouts drawn at random, with dense blocks too, at each price of time."""
    few = (f"model={model}", f"model.num_layers={layers}", f"gpu={gpu}", "sequence_length=2048")
    base = compose(few, CONFIG)[0].workload
    asked = Constraints(sharding=(Sharding.FULL, Sharding.GRADIENTS), microbatch_size=(1, 2, 4))
    predictor = LayoutPredictor(base, InstructionPrices(base))
    laid_out = (layout.workload(base) for layout in layouts_of(base, 32, 64, asked))
    candidates = [workload for workload in laid_out if workload.parallelism.shards_gradients]
    split, checked = [], 0
    for workload in random.Random(layers).sample(candidates, 60):
        with contextlib.suppress(RefusedWorkloadError):
            split.append(checked_but_for_memory(workload))
    for workload in split[:12]:
        structure, recomputed = predictor.costs.of(workload), workload.recomputation
        for (stage, _), shape in laid_out_shapes(workload).items():
            weights = weights_of(workload, stage, shape, workload.default_collective_sm_count)
            for direction in instruction_directions(split_backward=workload.split_backward):
                asked_for = shape, direction, recomputed, weights
                below = structure.beside(*asked_for, split_backward=workload.split_backward)
                best = structure.instruction(*asked_for, split_backward=workload.split_backward).best
                alone = structure.computing(shape, direction, recomputed)
                assert (alone.dual_j <= below.dual_j * (1 + 1e-9)).all(), (workload.parallelism, shape, direction)
                assert (below.dual_j <= best.dual_j * (1 + 1e-9)).all(), (workload.parallelism, shape, direction)
                checked += below.dual_j[FASTEST] > 1.2 * alone.dual_j[FASTEST]
    assert checked > 10  # bounds that exchanges raise


def test_no_random_choice_of_points_undercuts_a_bound(found):
    predictor, costs, candidates = found
    drawn = np.random.default_rng(0)
    for one in candidates:
        workload, below = one.workload, computing_bound(one.workload, costs)
        points = predictor.points(workload)
        instructions, dag = predictor.pipeline(workload, workload.num_microbatches)
        chosen = []
        for instruction in instructions:  # 64 brute plans: each instruction at a point of its own, slow ones included
            own = points[instruction.key.kind]
            chosen.append(own[(drawn.random(64) ** np.linspace(0.2, 5, 64) * len(own)).astype(int)])
        times_s, effective_j = np.moveaxis(np.array(chosen)[..., :2], 2, 0)
        time_s = (times_s - latest_ends(dag.mirrored, times_s, np.zeros(64))).max(axis=0)
        waiting_w = least_waiting_w(workload.gpu) * workload.parallelism.gpus
        energy_j = workload.parallelism.gpus_per_stage * effective_j.sum(axis=0) + waiting_w * time_s
        for bound in (below, predictor.bound_without_update(workload), predictor.bound(workload)):
            assert (time_s >= bound.fastest_s * (1 - 1e-9)).all(), one.layout.words
            at = np.searchsorted(bound.times_s, time_s * (1 + 1e-9), side="right") - 1
            assert (energy_j >= bound.between_j[at] * (1 - 1e-9)).all(), one.layout.words
            assert (energy_j >= bound.least_j * (1 - 1e-9)).all(), one.layout.words


def test_a_bound_holds_for_plans_beyond_its_last_deadline(found):
    predictor, _, candidates = found
    bound = predictor.bound(candidates[0].workload)
    assert bound.between_j[-1] <= bound.floor_j + bound.waiting_w * bound.times_s[-1]
    assert bound.floor_j <= bound.falling_j.min()


def test_bounds_are_close_to_the_relaxation(found):
    predictor, _, candidates = found
    for one in [one for one in candidates if one.layout.chunks == 1][:6]:
        bound = predictor.bound(one.workload)
        fastest_s = Relaxation(layout_problem(predictor, one.workload)).fastest_s
        assert 0.85 < bound.fastest_s / fastest_s <= 1 + 1e-9, one.layout.words
