"""Layouts: that all are enumerated once, and that constraints narrow them."""

import pytest
from helpers.builders import CONFIG

from kareus.adviser.feasible import Reason, sort_layouts
from kareus.adviser.layouts import Constraints, layouts_of
from kareus.model.parallelism import Sharding
from kareus.pipeline.config import PipelineSchedule
from kareus.workload.compose import compose
from kareus.workload.memory import estimate_memory
from kareus.workload.resolve import resolve, with_split


@pytest.fixture(scope="module")
def base():
    return compose(["model=llama3.3-70b", "gpu=h100-sxm5-80gb", "sequence_length=8192"], CONFIG)[0].workload


@pytest.fixture(scope="module")
def layouts(base):
    return list(layouts_of(base, 64, 512, Constraints()))


def test_64_gpus_have_more_than_a_thousand_layouts(layouts):
    assert len(layouts) > 1000
    assert len(set(layouts)) == len(layouts)


def test_degrees_and_batch_multiply_to_what_was_asked_for(layouts):
    assert {layout.gpus for layout in layouts} == {64}
    assert {layout.dp * layout.num_microbatches * layout.microbatch_size for layout in layouts} == {512}


def test_what_does_nothing_is_not_enumerated(layouts):
    assert all(layout.sharding is Sharding.NONE for layout in layouts if layout.dp == 1)
    assert not any(layout.sequence_parallel for layout in layouts if layout.tp == 1)
    assert all(layout.schedule is PipelineSchedule.ONE_FORWARD_ONE_BACKWARD for layout in layouts if layout.pp == 1)


def test_constraints_narrow_layouts(base, layouts):
    narrow = Constraints(tp=(8,), pp=(2, 4), schedule=(PipelineSchedule.GPIPE,), microbatch_size=(2,))
    narrowed = list(layouts_of(base, 64, 512, narrow))
    assert {(layout.tp, layout.pp, layout.schedule, layout.microbatch_size) for layout in narrowed} == {
        (8, 2, PipelineSchedule.GPIPE, 2),
        (8, 4, PipelineSchedule.GPIPE, 2),
    }
    assert not set(narrowed) & set(layouts)


def test_pipelines_in_a_v_are_enumerated_where_they_are_asked_for(base, layouts):
    assert not any(layout.schedule.folds for layout in layouts)
    asked = Constraints(pp=(4,), schedule=(PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.DUALPIPE_V))
    assert {(layout.schedule, layout.chunks) for layout in layouts_of(base, 64, 512, asked)} == {
        (schedule, 2) for schedule in asked.schedule
    }


def test_refusals_are_those_of_resolve(base, layouts):
    some = layouts[:: len(layouts) // 25]
    sorted_layouts = sort_layouts(base, some)
    assert sorted_layouts.candidates and sorted_layouts.reasons[Reason.MEMORY] > 0
    accepted = {candidate.layout: candidate for candidate in sorted_layouts.candidates}
    for layout in some:
        (resolved,) = resolve(
            ["model=llama3.3-70b", "gpu=h100-sxm5-80gb", "sequence_length=8192", *layout.overrides], CONFIG
        )
        assert (resolved.refusal is None) is (layout in accepted)
        if layout in accepted:
            assert resolved.workload == accepted[layout].workload


@pytest.mark.parametrize("model", ["llama3.3-70b", "deepseek-v3"])
def test_layouts_that_share_memory_need_what_each_does_by_itself(model):
    """Dense blocks beside experts, chunks, split backwards and all shardings are among them."""
    base = compose([f"model={model}", "gpu=h100-sxm5-80gb"], CONFIG)[0].workload
    asked = Constraints(tp=(1, 4), cp=(1, 2), pp=(1, 4, 16), microbatch_size=(1, 2))
    sorted_layouts = sort_layouts(base, list(layouts_of(base, 256, 512, asked))[::3])
    estimated = [
        (layout.layout, layout.memory)
        for layout in (*sorted_layouts.candidates, *sorted_layouts.refusals)
        if layout.memory is not None
    ]
    assert len(estimated) > 50
    for layout, memory in estimated:
        assert memory == estimate_memory(with_split(layout.workload(base)))


@pytest.fixture(scope="module")
def mixture():
    return compose(["model=qwen3-30b-a3b", "gpu=h100-sxm5-80gb"], CONFIG)[0].workload


def test_experts_are_shared_out_within_nodes_over_some_or_not_at_all(mixture):
    few = Constraints(tp=(1, 2), cp=(1,), pp=(1, 2), microbatch_size=(1,))
    within_nodes = {(Sharding.FULL, 8), (Sharding.FULL, 4)}
    degrees: dict[tuple[int, int], set[int]] = {}
    shardings = set()
    for layout in layouts_of(mixture, 64, 512, few):
        degrees.setdefault((layout.pp, layout.tp), set()).add(layout.ep)
        assert layout.dp * layout.tp % layout.ep == 0
        assert layout.sequence_parallel is (layout.tp > 1)
        shardings.add((layout.sharding, layout.shards))
    assert shardings == {(Sharding.NONE, None), (Sharding.OPTIMIZER, None), (Sharding.FULL, None), *within_nodes}
    assert degrees == {
        (1, 1): {1, 8, 16, 32, 64},
        (1, 2): {1, 8, 16, 32, 64},
        (2, 1): {1, 8, 16, 32},
        (2, 2): {1, 8, 16, 32},
    }
    assert {layout.ep for layout in layouts_of(mixture, 64, 512, Constraints(ep=(4,)))} == {4}


def test_layouts_of_experts_are_told_and_read_back(mixture):
    narrow = Constraints(tp=(1,), cp=(1,), pp=(4,), ep=(8,), microbatch_size=(1,), sharding=(Sharding.OPTIMIZER,))
    candidates = sort_layouts(mixture, layouts_of(mixture, 64, 512, narrow)).candidates
    assert candidates
    for candidate in candidates:
        assert candidate.workload.parallelism.ep == 8
        assert "parallelism.ep=8" in candidate.layout.overrides
        assert ", ep 8, " in candidate.layout.words
    dense = next(layouts_of(mixture, 8, 8, Constraints(ep=(1,))))
    assert "ep" not in dense.words.split()
    assert not [text for text in dense.overrides if ".ep=" in text]


def test_replicas_that_share_states_are_asked_for_and_have_one_name(base):
    dense = base
    narrow = {"tp": (1,), "cp": (1,), "pp": (1,), "microbatch_size": (1,)}
    shards = {layout.shards for layout in layouts_of(dense, 64, 512, Constraints(**narrow, shards=(4, 16, 48, 64)))}
    assert shards == {4, 16, None}  # 48 does not divide, 64 are all
    shared = {layout.sharding for layout in layouts_of(dense, 64, 512, Constraints(**narrow, shards=(8,)))}
    assert shared == {Sharding.OPTIMIZER, Sharding.FULL}
