"""Blocks of chunks by Megatron Core's text and torchtitan's names: read as they were written, and as guides say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.interchange.stage_layout import chunk_modules, layout_split, layout_terms, layout_text, modules_split


@given(
    chunks=st.integers(1, 4),
    pieces=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_blocks_are_read_as_they_were_written(chunks: int, pieces: list[int], ends: tuple[bool, bool]) -> None:
    """With embedding and head in the place of a block of a chunk, too."""
    split = [chunks * piece for piece in pieces]
    for place, is_less in zip((0, -1), ends, strict=True):
        split[place] -= is_less and pieces[place] > 1
    assert layout_split(layout_text(split, chunks), len(split)) == (split, chunks)


@pytest.mark.parametrize(
    ("text", "stages", "found"),
    [
        ("Et*3|(tt|)*2t,L", 4, ([3, 2, 2, 1], 1)),
        ("E,t*4|t*4|t*4|t*4,L", 4, ([4, 4, 4, 4], 1)),
        ("Et*2|t*3|t*2|t*3L", 2, ([4, 6], 2)),
        ("Et|t*2|t*2|t*2|t*2|tL", 3, ([3, 4, 3], 2)),
        ("Et*3|t|t|t*3L", 2, ([3, 1, 1, 3], 2)),
        ("Et*3|t,m|L", 2, None),
        ("Et*3|(tt|)*29,m|L", 16, None),
        ("t*3E|t*3L", 2, None),
        ("Et*3|x|tL", 3, None),
        ("Et*3|t*3|tL", 2, None),
        ("((t)*9999)*9999", 1, None),
    ],
)
def test_a_text_is_a_split_where_chunks_have_blocks(
    text: str, stages: int, found: tuple[list[int], int] | None
) -> None:
    assert layout_split(text, stages) == found


@given(
    blocks=st.lists(st.integers(1, 9), min_size=2, max_size=12).filter(lambda own: len(own) % 2 == 0),
    folded=st.booleans(),
)
def test_any_blocks_on_chunks_are_read_as_they_were_written(blocks: list[int], folded: bool) -> None:
    """Whether a microbatch passes all stages and again, or there and back."""
    chunks = 2
    stages = len(blocks) // chunks
    split = modules_split(chunk_modules(blocks, chunks, stages, folded=folded), stages, folded=folded)
    assert split is not None
    again = chunk_modules(split[0], chunks, stages, folded=folded)
    assert [sum(name.startswith("layers.") for name in part) for part in again] == blocks
    if not folded:
        assert layout_split(layout_text(blocks, chunks, stages), stages) == split


@pytest.mark.parametrize(
    "parts",
    [
        "tok_embeddings",
        [["tok_embeddings", "layers.0"], ["layers.1", "norm"]],
        [["tok_embeddings", "layers.1"], ["layers.0", "norm", "lm_head"]],
        [["tok_embeddings"], ["layers.0", "norm", "lm_head"]],
        [["tok_embeddings", "layers.0"], ["layers.1"], ["layers.2", "norm", "lm_head"]],
    ],
)
def test_names_that_are_no_blocks_in_their_order_are_no_split(parts: object) -> None:
    assert modules_split(parts, 2) is None


@pytest.mark.filterwarnings("ignore")  # of libraries that Megatron Core does not find
@pytest.mark.parametrize(
    ("split", "chunks"),
    [
        ([17, 15], 1),
        ([17, 15], 2),
        ([15, 13], 2),
        ([18, 14], 2),
        ([16, 16], 4),
        ([15, 15], 2),
        ([9, 8, 8, 7], 2),
        ([7, 8, 8, 7], 4),
        ([8, 7, 8, 9], 1),
    ],
)
def test_megatron_core_takes_the_blocks_that_are_said(split, chunks):
    """It refuses a number of blocks of a stage that its chunks do not divide, but for a text that has all chunks."""
    torch = pytest.importorskip("torch")
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    schedule = "interleaved" if chunks > 1 else "1f1b"
    terms = dict(
        layout_terms({
            "parallelism.layers_per_stage": split,
            "parallelism.pp": len(split),
            "pipeline.chunks": chunks,
            "pipeline.schedule": schedule,
        })
    )  # fmt: skip
    counted = sum(split) + 2 * terms.get("embedding_counts", False)
    assert not terms.get("layers_per_chunk") or counted == terms["layers_per_chunk"] * chunks * len(split)
    text = terms.get("stage_layout")
    config.TransformerConfig(
        num_layers=sum(split),
        hidden_size=64,
        num_attention_heads=4,
        pipeline_dtype=torch.bfloat16,
        pipeline_model_parallel_size=len(split),
        virtual_pipeline_model_parallel_size=None if text or chunks == 1 else chunks,
        pipeline_model_parallel_layout=text,
        num_layers_in_first_pipeline_stage=terms.get("first_layers"),
        num_layers_in_last_pipeline_stage=terms.get("last_layers"),
        account_for_embedding_in_pipeline_split=terms.get("embedding_counts", False),
        account_for_loss_in_pipeline_split=terms.get("head_counts", False),
    )
