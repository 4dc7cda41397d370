"""The size of a pipeline, from which schedules generate the order of each stage."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Size of a pipeline."""

    stages: int
    """Number of stages, 1 or more."""
    microbatches: int
    """Number of microbatches of one iteration, 1 or more; fewer than stages where the schedule allows it."""
    chunks: int = 1
    """Number of chunks into which the layers of every stage are cut."""
