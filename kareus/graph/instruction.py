"""The key of a pipeline instruction, which plans, instruction DAGs, the runtime and simulated runs share."""

from typing import NamedTuple

from kareus.graph.records import Direction


class InstructionKind(NamedTuple):
    """What the instructions of all microbatches share; instructions of one kind may run at the same points."""

    stage: int
    chunk: int
    direction: Direction


class InstructionKey(NamedTuple):
    """Identity of one instruction of an iteration: a pass of a microbatch through a stage, or through a chunk of it."""

    stage: int
    chunk: int
    """Chunk of the stage's layers; always 0 unless the schedule interleaves."""
    microbatch: int
    direction: Direction

    @property
    def kind(self) -> InstructionKind:
        """The instruction's kind, without the microbatch."""
        return InstructionKind(self.stage, self.chunk, self.direction)

    def __str__(self) -> str:
        """Return the instruction in words, for messages."""
        chunk = f", chunk {self.chunk}" * bool(self.chunk)
        return f"{self.direction} of microbatch {self.microbatch} on stage {self.stage}{chunk}"
