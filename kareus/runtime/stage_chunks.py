"""Chunks of the model on one rank: those of its stage, a single one unless the pipeline is interleaved."""

from collections.abc import Sequence

from torch import nn

from kareus.graph.instruction import place_in_line
from kareus.profile.programs import chunk_shapes
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


def first_layers(layers_per_stage: Sequence[int], chunks: int, stage: int) -> tuple[int, ...]:
    """Number in the model of the first block of every chunk of `stage`.

    Args:
        layers_per_stage: blocks on each stage, as of `chunk_shapes`.
        chunks: equal parts of every stage's blocks.
        stage: from 0.
    """
    shapes = chunk_shapes(layers_per_stage, chunks)
    passed = sorted(shapes, key=lambda place: place_in_line(place[0], place[1], len(layers_per_stage)))
    return tuple(
        sum(shapes[place].layers for place in passed[: passed.index((stage, chunk))]) for chunk in range(chunks)
    )
