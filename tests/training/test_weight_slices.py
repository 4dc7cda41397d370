"""What ranks hold of whole weights: together all of them, each element where a Hugging Face checkpoint has it."""

import itertools
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from helpers.builders import small_model
from hypothesis import given
from hypothesis import strategies as st

from kareus.model.communication import Communicator, Mesh
from kareus.model.weights import own_part, pieces
from kareus.training.weight_slices import Box, difference, held_boxes, intersection

MODEL = small_model(name="tiny", qkv_bias=True, qk_norm=True)
WEIGHTS = ("attention.qkv.weight", "attention.qkv.bias", "attention.projection.weight", "mlp.gate_up.weight")


def mesh(rank: int, size: int) -> Mesh:
    return Mesh(tp=cast("Communicator", SimpleNamespace(rank=rank, size=size)))


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("tp", [1, 2])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=4))
def test_runs_of_all_ranks_make_up_the_whole_weights(weight: str, tp: int, cuts: list[int]) -> None:
    name = f"blocks.3.{weight}"
    held = pieces(MODEL, name, 0)
    wholes = {piece.name: torch.randn(piece.shape) for piece in held}
    found = {piece.name: torch.full(piece.shape, torch.nan) for piece in held}
    for rank in range(tp):
        own = torch.cat([wholes[piece.name][own_part(piece, mesh(rank, tp))] for piece in held]).flatten()
        ends = sorted({0, *(min(cut, len(own)) for cut in cuts), len(own)})
        for start, end in itertools.pairwise(ends):
            run = own[start:end]
            for box in held_boxes(MODEL, name, start, end - start, mesh(rank, tp)):
                everything = Box((0,) * len(box.box.sizes), tuple(wholes[box.name].shape))
                target = found[box.name][box.box.slices_in(everything)]
                assert target.isnan().all(), "no element is held twice"
                target.copy_(run[box.start :][: box.box.elements].view(box.box.sizes))
    assert all(torch.equal(found[name], whole) for name, whole in wholes.items())


def test_a_run_of_a_divided_weight_is_at_most_three_boxes() -> None:
    """Columns 24 to 47 of the second of two GPUs: part of a row, rows, part of a row."""
    down = list(held_boxes(MODEL, "blocks.0.mlp.down.weight", 30, 60, mesh(1, 2)))
    assert [(held.box, held.start) for held in down] == [
        (Box((1, 30), (1, 18)), 0),
        (Box((2, 24), (1, 24)), 18),
        (Box((3, 24), (1, 18)), 42),
    ]


def boxes(sides: int) -> st.SearchStrategy[Box]:
    spans = st.tuples(st.integers(0, 5), st.integers(1, 5))
    return st.lists(spans, min_size=sides, max_size=sides).map(lambda found: Box(*map(tuple, zip(*found, strict=True))))


def places(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(n, n + m) for n, m in zip(*box, strict=True))))


@given(st.integers(1, 3).flatmap(lambda sides: st.tuples(boxes(sides), boxes(sides))))
def test_boxes_share_and_lack_what_their_elements_do(pair: tuple[Box, Box]) -> None:
    one, other = pair
    shared = intersection(one, other)
    assert (places(shared) if shared else set()) == places(one) & places(other)
    if shared:
        rest = [places(box) for box in difference(one, shared)]
        assert set().union(*rest) == places(one) - places(other)
        assert sum(map(len, rest)) == one.elements - shared.elements
