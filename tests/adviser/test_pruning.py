"""Pruning: that the frontier is that of all layouts, planned in full."""

import dataclasses
import random

import pytest
from helpers.builders import CONFIG

from kareus.adviser.advice import answer
from kareus.adviser.feasible import sort_layouts
from kareus.adviser.layouts import layouts_of
from kareus.adviser.order import with_setting
from kareus.adviser.planning import frontier_of, plan_layout
from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.question import ask


def frontiers(question, gpus, share=1.0):
    """The frontier with pruning, and that of a share of all layouts, drawn at random and planned in full.

    Layouts that the trainer has no setting for are in neither; those with other blocks on their stages are in both.
    """
    answered = answer(question).sizes[0]
    base, trainer = question.base, question.trainer
    enumerated = sort_layouts(base, layouts_of(base, gpus, question.global_batch, question.constraints))
    candidates = with_setting(enumerated, trainer).candidates
    drawn = random.Random(0).sample(candidates, round(share * len(candidates)))
    predictor = LayoutPredictor(base, InstructionPrices(base, trainer=trainer), trainer)
    plans = []
    for one in drawn:
        plans += plan_layout(predictor, predictor.predict(one, predictor.bound(one.workload)))
    for other in answered.layouts:
        plans += other.plans if other.candidate.layout.layers_per_stage is not None else ()
    return [choice.cost for choice in answered.frontier], frontier_of(plans), drawn


OF_EXPERTS = ["model=qwen3-30b-a3b", "model.num_layers=4", "gpu=h100-sxm5-80gb", "cp=1"]
"""On two nodes, between which exchanges of tokens and of weights share the NICs."""


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        (["model=qwen3-1.7b", "gpu=h100-sxm5-80gb", "cp=1", "microbatch_size=2", "sharding=none,optimizer"], 4),
        ([*OF_EXPERTS, "ep=1,8", "microbatch_size=1", "sharding=optimizer,full"], 16),
    ],
)
def test_pruning_leaves_out_nothing_of_the_frontier(asked, gpus):
    question = ask(
        [*asked, "tp=1,2", "pp=1,2", "recompute=none"],
        gpus=gpus,
        global_batch=16,
        sequence_length=2048,
        config_dir=CONFIG,
    )
    pruned, full, drawn = frontiers(question, gpus)
    assert len(drawn) > 8
    assert pruned == full


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_pruning_is_safe_on_8_gpus_with_all_layouts():
    """Few microbatches, so that planning a thousand layouts in full takes minutes."""
    question = ask(
        ["model=qwen3-1.7b", "gpu=h100-sxm5-80gb"], gpus=8, global_batch=8, sequence_length=4096, config_dir=CONFIG
    )
    pruned, full, drawn = frontiers(question, 8)
    assert len(drawn) > 500
    assert pruned == full


@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_pruning_is_safe_with_experts_whose_weights_are_gathered():
    asked = [*OF_EXPERTS, "microbatch_size=1,2", "schedule=1f1b"]
    question = ask(asked, gpus=16, global_batch=16, sequence_length=2048, config_dir=CONFIG)
    pruned, full, drawn = frontiers(question, 16)
    assert len(drawn) > 300
    assert sum(one.workload.parallelism.shards_weights for one in drawn) > 100
    assert pruned == full


@pytest.mark.acceptance
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "batch"),
    [
        ("llama3.2-3b", "a100-sxm4-80gb", 16, 64),
        ("llama3.1-8b", "h200", 8, 32),
        ("qwen3-1.7b", "h100-sxm5-80gb", 32, 64),
    ],
)
def test_no_layout_of_a_random_third_beats_the_frontier(model, gpu, gpus, batch):
    question = ask([f"model={model}", f"gpu={gpu}"], gpus=gpus, global_batch=batch, config_dir=CONFIG)
    pruned, third, drawn = frontiers(question, gpus, share=1 / 3)
    assert len(drawn) > 100
    for plan in third:
        assert any(known.time_s <= plan.time_s and known.energy_j <= plan.energy_j for known in pruned), (
            dataclasses.asdict(plan)
        )
