import dataclasses
import itertools
import re
from functools import cache

import pytest
from helpers.builders import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import RefusedWorkloadError
from kareus.graph.recomputation import Recomputation
from kareus.profile.programs import chunk_shapes, laid_out_shapes
from kareus.workload.compose import compose
from kareus.workload.config import Workload
from kareus.workload.resolve import with_split
from kareus.workload.split import balanced_split, block_flops, even_split, head_flops, layers_per_stage


@cache
def workload(*overrides: str) -> Workload:
    return compose(overrides, CONFIG)[0].workload


def brute_force(num_layers: int, stages: int, head_blocks: float) -> list[float]:
    """The best work of all stages, largest first, over every split."""
    splits = (
        [*(b - a for a, b in itertools.pairwise((0, *cuts, num_layers)))]
        for cuts in itertools.combinations(range(1, num_layers), stages - 1)
    )
    return min(sorted((*split[:-1], split[-1] + head_blocks), reverse=True) for split in splits)


@given(st.integers(1, 4), st.integers(0, 8), st.floats(0, 12))
def test_the_split_is_the_best_of_all(stages: int, more: int, head_blocks: float) -> None:
    split = balanced_split(stages + more, stages, head_blocks)
    assert (len(split), sum(split), min(split) >= 1) == (stages, stages + more, True)
    work = sorted((*split[:-1], split[-1] + head_blocks), reverse=True)
    assert work == pytest.approx(brute_force(stages + more, stages, head_blocks))


def test_of_equal_stages_the_later_takes_the_block() -> None:
    assert balanced_split(7, 3, 0.0) == (2, 2, 3)


def test_flops_of_a_block_are_those_of_its_products() -> None:
    model = workload().model
    # By hand, for one token of Llama 3.2 3B: QKV 3072 x 5120, projection 3072 x 3072, three of 3072 x 8192; scores and
    # their product with the values see 2048 of 4096 tokens on average, over 3072 query channels.
    forward = 2 * (3072 * 5120 + 3072 * 3072 + 3 * 3072 * 8192) + 2 * 2 * 2048 * 3072
    assert block_flops(model, 4096, recomputation=Recomputation.NONE) == 3 * forward
    assert block_flops(model, 4096, recomputation=Recomputation.STAGE) == 4 * forward
    assert head_flops(model) == 3 * 2 * 3072 * 128256


def test_the_known_splits_are_close_to_balanced() -> None:
    for overrides in (["model=llama3.2-3b"], ["model=qwen3-1.7b"], ["model=llama3.3-70b", "parallelism=pp10tp8"]):
        known = workload(*overrides)
        bare = dataclasses.replace(known, model=dataclasses.replace(known.model, layers_per_stage={}))
        pairs = zip(layers_per_stage(known), layers_per_stage(bare), strict=True)
        assert max(abs(a - b) for a, b in pairs) <= 1


def test_the_split_is_configured_else_the_models_else_balanced() -> None:
    assert layers_per_stage(workload("parallelism.layers_per_stage=[20,8]")) == (20, 8)
    assert layers_per_stage(workload()) == (15, 13)
    assert layers_per_stage(workload("parallelism.pp=4")) == (7, 8, 8, 5)  # the LM head weighs 2.6 blocks


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["parallelism.layers_per_stage=[15,14]"], "=[15, 14]: adds up to 29; must be model.num_layers (28)."),
        (
            ["parallelism.layers_per_stage=[28]"],
            "=[28]: has 1 entries; must have one for each stage (parallelism.pp=2).",
        ),
        (
            ["parallelism.layers_per_stage=[9,9,10]", "pipeline=interleaved", "pipeline.chunks=2"],
            "=[9, 9, 10]: has 3 entries; must have one for each stage (parallelism.pp=2), or for each chunk of each "
            "(pipeline.chunks=2).",
        ),
        (["parallelism.layers_per_stage=[28,0]"], "=[28, 0]: every stage must have 1 block or more."),
        (
            ["parallelism.layers_per_stage=[15,13]", "pipeline=interleaved", "pipeline.chunks=3"],
            "=[15, 13]: every stage must have a multiple of pipeline.chunks (3) blocks, first and last one less "
            "where embedding or head takes its place; give the blocks of each of the 6 chunks as a microbatch "
            "passes them, such as [5, 5, 5, 4, 5, 4], or null to have a split computed.",
        ),
    ],
)
def test_a_split_that_does_not_fit_the_model_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(RefusedWorkloadError) as raised:
        layers_per_stage(workload(*overrides))
    assert str(raised.value) == f"parallelism.layers_per_stage{message}"


def test_uneven_stages_of_a_v_are_refused_with_chunks_that_are_taken() -> None:
    with pytest.raises(RefusedWorkloadError, match=r"multiple of pipeline.chunks \(2\) blocks; give") as raised:
        with_split(workload("pipeline=zb-v", "parallelism.layers_per_stage=[15,13]"))
    (proposed,) = re.findall(r"such as (\[.*\]),", str(raised.value))
    taken = with_split(workload("pipeline=zb-v", f"parallelism.layers_per_stage={proposed}")).parallelism
    assert taken.split == (15, 13)
    with pytest.raises(RefusedWorkloadError, match="as a microbatch passes them, or null"):
        with_split(workload("pipeline=zb-v", "parallelism.layers_per_stage=[1,27]"))


def test_chunks_of_a_v_are_balanced_where_they_cannot_be_equal() -> None:
    """61 blocks on four stages, eight chunks; the LM head is in the last of these, which has as many fewer."""
    of_v = with_split(workload("model=deepseek-v3", "parallelism.pp=4", "parallelism.tp=1", "pipeline=dualpipe-v"))
    head = head_flops(of_v.model) / block_flops(of_v.model, 4096, recomputation=of_v.recomputation)
    *chunks, last = of_v.parallelism.placed
    assert (sum(chunks) + last, max(chunks) - min(chunks)) == (61, 1)
    assert abs(last + head - sum(chunks) / 7) < 1
    assert of_v.parallelism.split[0] == chunks[0] + last


def test_chunks_are_equal_whatever_the_models_table_says() -> None:
    assert layers_per_stage(workload("pipeline=interleaved")) == (16, 12)
    assert layers_per_stage(workload("pipeline=interleaved", "parallelism.layers_per_stage=[14,14]")) == (14, 14)
    seventy = ["model=llama3.3-70b", "parallelism=pp10tp8", "pipeline=interleaved", "pipeline.chunks=4"]
    assert layers_per_stage(workload(*seventy)) == (8,) * 10


def test_a_chunk_may_have_the_embedding_or_the_head_alone() -> None:
    """As in 30 of the blocks of Llama 3.1 405B on 64 H100, which NVIDIA measured."""
    split = "parallelism.layers_per_stage=[6,7,7,6]"
    cut = workload("pipeline=interleaved", "pipeline.chunks=7", "parallelism.pp=4", "model.num_layers=26", split)
    shapes = chunk_shapes(layers_per_stage(cut), 7)
    assert {place: shape.layers for place, shape in shapes.items() if shape.layers != 1} == {(0, 0): 0, (3, 6): 0}


@pytest.mark.parametrize(("chunks", "stages"), [(11, 2), (14, 4)])
def test_layers_that_cannot_be_cut_into_the_chunks_are_refused(chunks: int, stages: int) -> None:
    cut = workload("pipeline=interleaved", f"pipeline.chunks={chunks}", f"parallelism.pp={stages}")
    with pytest.raises(RefusedWorkloadError) as raised:
        layers_per_stage(cut)
    assert str(raised.value) == (
        f"pipeline.chunks={chunks}: model.num_layers (28) must be a multiple of it, with a block for each chunk of "
        f"each stage (parallelism.pp={stages}), or with embedding and head as one each; use another number of chunks."
    )


def test_embedding_and_head_take_the_place_of_a_block_of_chunks() -> None:
    cut = workload("pipeline=interleaved", "pipeline.chunks=3")
    assert layers_per_stage(cut) == (14, 14)
    assert {place: shape.layers for place, shape in chunk_shapes((14, 14), 3).items()} == {
        (0, 0): 4,
        (0, 1): 5,
        (0, 2): 5,
        (1, 0): 5,
        (1, 1): 5,
        (1, 2): 4,
    }


@given(st.integers(2, 16), st.integers(1, 8), st.integers(1, 8))
def test_an_even_split_counts_the_ends_or_nothing(stages: int, chunks: int, blocks: int) -> None:
    whole = stages * chunks * blocks
    assert even_split(whole, stages, chunks) == (chunks * blocks,) * stages
    counted = even_split(whole - 2, stages, chunks)
    if whole == stages or (whole - 2) % (stages * chunks) == 0:
        return  # a stage has no block, or all are even without
    assert counted is not None
    assert (sum(counted), {counted[0] + 1, *counted[1:-1], counted[-1] + 1}) == (whole - 2, {chunks * blocks})


def test_the_models_own_table_is_checked_too() -> None:
    with pytest.raises(RefusedWorkloadError) as raised:
        layers_per_stage(workload("model.num_layers=30"))
    assert str(raised.value) == "model.layers_per_stage.2=[15, 13]: adds up to 28; must be model.num_layers (30)."


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(RefusedWorkloadError) as raised:
        layers_per_stage(workload("parallelism.pp=29"))
    assert str(raised.value) == "parallelism.pp=29: must be at most model.num_layers (28), a block each."


def test_blocks_of_each_chunk_are_given_in_the_order_in_which_they_are_passed() -> None:
    there = workload("pipeline=interleaved", "pipeline.chunks=3", "parallelism.layers_per_stage=[6,5,5,4,5,3]")
    back = workload("pipeline=zb-v", "parallelism.layers_per_stage=[8,7,8,5]")
    assert laid_out(there) == ((16, 12), [6, 5, 5, 5, 4, 3])
    assert laid_out(back) == ((13, 15), [8, 5, 7, 8])


def test_blocks_of_equal_chunks_are_those_of_stages() -> None:
    for schedule, even in (("interleaved", [8, 6, 8, 6]), ("zb-v", [8, 6, 6, 8])):
        given = workload(f"pipeline={schedule}", f"parallelism.layers_per_stage={even}")
        assert with_split(given).parallelism.layers_per_stage == (16, 12)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([8, 8, 8, 5], "adds up to 29; must be model.num_layers (28)."),
        ([8, 8, 12, 0], "every stage and chunk must have 1 block or more."),
    ],
)
def test_chunks_that_do_not_fit_the_model_are_refused(blocks: list[int], message: str) -> None:
    with pytest.raises(RefusedWorkloadError) as raised:
        layers_per_stage(workload("pipeline=interleaved", f"parallelism.layers_per_stage={blocks}"))
    assert str(raised.value) == f"parallelism.layers_per_stage={blocks}: {message}"


def laid_out(given: Workload) -> tuple[tuple[int, ...], list[int]]:
    """Blocks on each stage, and on each chunk by stage."""
    resolved = with_split(given)
    return resolved.parallelism.split, [shape.layers for shape in laid_out_shapes(resolved).values()]
