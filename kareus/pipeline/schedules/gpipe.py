"""The GPipe schedule: all forwards, then all backwards (Huang et al., NeurIPS 2019, section 2.3)."""

from kareus.graph.records import Direction
from kareus.pipeline.schedules.work import Extent, Work


def stage_order(_stage: int, extent: Extent) -> list[Work]:
    """Instructions of any stage, in order of execution; it holds the activations of all microbatches at once."""
    return [
        Work(direction, m) for direction in (Direction.FORWARD, Direction.BACKWARD) for m in range(extent.microbatches)
    ]
