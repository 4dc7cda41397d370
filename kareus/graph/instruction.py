"""The key of a pipeline instruction, which plans, instruction DAGs, the runtime and simulated runs share."""

from typing import NamedTuple

from kareus.graph.records import UPDATING, Direction

NO_MICROBATCH = -1
"""Microbatch of an instruction of the update, which is of the whole iteration."""


class InstructionKind(NamedTuple):
    """What the instructions of all microbatches share; instructions of one kind may run at the same points."""

    stage: int
    chunk: int
    direction: Direction


class InstructionKey(NamedTuple):
    """Identity of one instruction of an iteration.

    It is a pass of a microbatch through a stage or a chunk of it, or a step of the update of a stage's weights.
    """

    stage: int
    chunk: int
    """Chunk of the stage's layers; always 0 unless the schedule interleaves."""
    microbatch: int
    """Microbatch, from 0; `NO_MICROBATCH` for the update, whose chunk is 0."""
    direction: Direction

    @property
    def kind(self) -> InstructionKind:
        """The instruction's kind, without the microbatch."""
        return InstructionKind(self.stage, self.chunk, self.direction)

    def __str__(self) -> str:
        """Return the instruction in words, for messages."""
        if self.direction in UPDATING:
            return f"{self.direction} of stage {self.stage}"
        chunk = f", chunk {self.chunk}" * bool(self.chunk)
        return f"{self.direction} of microbatch {self.microbatch} on stage {self.stage}{chunk}"


def place_in_line(stage: int, chunk: int, stages: int, *, folded: bool = False) -> int:
    """Chunks that a microbatch passes before this one: chunk 0 of every stage, then chunk 1 of every stage, and on.

    With `folded` it passes every other chunk from the last stage to the first: two chunks are a V.
    """
    return chunk * stages + (stages - 1 - stage if folded and chunk % 2 else stage)
