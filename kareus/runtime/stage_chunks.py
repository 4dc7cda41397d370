"""Chunks of the model on one rank: those of its stage, a single one unless the pipeline is interleaved."""

import itertools
from collections.abc import Mapping, Sequence

from torch import nn

from kareus.graph.instruction import place_in_line
from kareus.profile.programs import StageShape
from kareus.runtime.stage_model import StageModel


class StageChunks(nn.Module):
    """The chunks of a stage as one module, whose blocks are named by their numbers in the whole model.

    Weights of different chunks thus never have the same name, and one that the rank of another pipeline holds has the
    same name there.
    """

    def __init__(self, chunks: Sequence[StageModel], first_layers: Sequence[int]) -> None:
        """Hold `chunks`, which stay where they are; chunk c begins with block `first_layers[c]` of the model."""
        super().__init__()
        self.chunks = tuple(chunks)  # not a list of modules, which would name all weights once more
        self.embedding = chunks[0].embedding
        self.blocks = nn.ModuleDict(
            {
                str(first + n): block
                for chunk, first in zip(chunks, first_layers, strict=True)
                for n, block in enumerate(chunk.blocks)
            }
        )
        self.head = chunks[-1].head


def first_layers(shapes: Mapping[tuple[int, int], StageShape], stage: int, *, folded: bool = False) -> tuple[int, ...]:
    """Number in the model of the first block of every chunk of `stage`.

    Args:
        shapes: of all chunks, by stage and chunk.
        stage: from 0.
        folded: whether the second chunks are passed from the last stage to the first.
    """
    stages = 1 + max(of_stage for of_stage, _ in shapes)
    passed = sorted(shapes, key=lambda place: place_in_line(place[0], place[1], stages, folded=folded))
    before = itertools.accumulate((shapes[place].layers for place in passed), initial=0)
    first = dict(zip(passed, before, strict=False))
    return tuple(layer for place, layer in sorted(first.items()) if place[0] == stage)
