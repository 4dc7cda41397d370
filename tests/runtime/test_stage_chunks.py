"""Which layers of the model a rank holds."""

from hypothesis import given
from hypothesis import strategies as st

from kareus.graph.instruction import place_in_line
from kareus.profile.programs import chunk_shapes
from kareus.runtime.stage_chunks import first_layers


@given(st.lists(st.integers(2, 5), min_size=2, max_size=5), st.integers(1, 4), st.booleans())
def test_a_microbatch_meets_the_layers_in_their_order(layers_per_chunk: list[int], chunks: int, ends: bool) -> None:
    split = [layers * chunks for layers in layers_per_chunk]
    if ends:  # embedding and head take the place of a block
        split[0], split[-1] = split[0] - 1, split[-1] - 1
    shapes = chunk_shapes(split, chunks)
    first = {(stage, c): n for stage in range(len(split)) for c, n in enumerate(first_layers(shapes, stage))}
    way = sorted(shapes, key=lambda place: place_in_line(*place, len(split)))
    met = [first[place] + n for place in way for n in range(shapes[place].layers)]
    assert met == list(range(sum(split)))
