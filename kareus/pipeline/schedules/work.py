"""What the order of a pipeline is made of; the vocabulary of the modules that generate orders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kareus.graph.records import Direction


class Work(NamedTuple):
    """What an instruction does, wherever it runs."""

    direction: Direction
    microbatch: int
    chunk: int = 0
    """Chunk of the stage's layers; always 0 unless the schedule interleaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How large a pipeline is."""

    stages: int
    """1 or more."""
    microbatches: int
    """Of one iteration, 1 or more; fewer than stages where the schedule allows it."""
    chunks: int = 1
    """Of the layers of every stage."""


StageOrder = Sequence[Work]
"""The instructions of one stage, in order of execution."""


def described(stage: int, work: Work) -> str:
    """What an instruction is, for people."""
    chunk = f", chunk {work.chunk}" * bool(work.chunk)
    return f"{work.direction} of microbatch {work.microbatch} on stage {stage}{chunk}"
