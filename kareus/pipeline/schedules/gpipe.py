"""The GPipe schedule: all forwards, then all backwards (Huang et al., NeurIPS 2019, section 2.3)."""

from kareus.graph.instruction import InstructionKey
from kareus.graph.records import Direction
from kareus.pipeline.schedules.extent import Extent


def stage_order(stage: int, extent: Extent) -> list[InstructionKey]:
    """Instructions of `stage`, in order of execution; it holds the activations of all microbatches at once."""
    return [
        InstructionKey(stage, 0, m, direction)
        for direction in (Direction.FORWARD, Direction.BACKWARD)
        for m in range(extent.microbatches)
    ]
