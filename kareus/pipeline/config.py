"""The pipeline schedule: the record of Hydra group `pipeline`, and what the stage reads."""

from dataclasses import dataclass, field
from enum import StrEnum

from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import ADDED
from kareus.errors import ConfigError
from kareus.frontiers.config import IterationConfig
from kareus.gpu_model.gpu import Gpu
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import PLAIN, TrainingOptions
from kareus.software.record import Software

MOST_DEADLINES = 1000
"""Plans of a frontier; neighbours of 64 differ by about 1 % in time."""
CHUNKS_OF_V = 2
"""Chunks of each stage where blocks pass the stages there and back."""


class PipelineSchedule(StrEnum):
    """Order of instructions on the stages."""

    ONE_FORWARD_ONE_BACKWARD = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    """1F1B over several chunks of layers on each stage."""
    ZERO_BUBBLE_H1 = "zb-h1"
    ZERO_BUBBLE_V = "zb-v"
    """Two chunks on each stage, the second on the way back, with the weight gradients later."""
    DUALPIPE_V = "dualpipe-v"
    """Likewise, in another order: a forward of one chunk is beside a backward of the other."""

    @property
    def folds(self) -> bool:
        """Whether blocks pass the stages there and back, so that the first stage has the first and the last of them."""
        return self in (PipelineSchedule.ZERO_BUBBLE_V, PipelineSchedule.DUALPIPE_V)

    @property
    def splits_backward(self) -> bool:
        """Whether a backward is two instructions: input gradients, and weight gradients later."""
        return self is PipelineSchedule.ZERO_BUBBLE_H1 or self.folds


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """The pipeline schedule and the resolution of its frontier."""

    schedule: PipelineSchedule
    """Order of instructions: `1f1b`, `gpipe`, `interleaved`, `zb-h1`, `zb-v` or `dualpipe-v`."""
    chunks: int
    """Parts into which each stage's layers are cut (virtual stages): more than 1 if interleaved, 2 in a V."""
    deadlines: int
    """Deadlines between the fastest and the most frugal iteration for which a plan is made."""

    def __post_init__(self) -> None:
        check_deadlines(self.deadlines)
        within(self, 1, 10_000, "chunks", "chunks")
        interleaves = self.schedule is PipelineSchedule.INTERLEAVED
        allowed = self.chunks == CHUNKS_OF_V if self.schedule.folds else interleaves == (self.chunks > 1)
        if not allowed:
            expected = CHUNKS_OF_V if self.schedule.folds else "2 or more" if interleaves else 1
            raise ConfigError(
                f"chunks={self.chunks}: must be {expected} with schedule={self.schedule}; choose the schedule as a "
                "whole, by pipeline=interleaved say."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSlice:
    """What solving iteration frontiers sees."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    pipeline: PipelineConfig
    iteration: IterationConfig
    microbatch_size: int
    num_microbatches: int
    sequence_length: int
    recomputation: Recomputation
    default_collective_sm_count: int
    software: Software
    precision: Precision
    linked_gpus: int
    training: TrainingOptions = field(default=PLAIN, metadata=ADDED)

    @property
    def split_backward(self) -> bool:
        """Whether a backward is two instructions."""
        return self.pipeline.schedule.splits_backward

    @property
    def chunks(self) -> int:
        """Chunks of each stage's layers."""
        return self.pipeline.chunks


def check_deadlines(deadlines: int) -> None:
    """Check the number of deadlines of a frontier.

    Raises:
        ConfigError: it lacks an end of the frontier, or is more than anybody can tell apart.
    """
    if deadlines < 2:  # noqa: PLR2004 - both ends of the frontier
        raise ConfigError(f"deadlines={deadlines}: must be 2 or more.")
    check_within("deadlines", deadlines, 2, MOST_DEADLINES, "plans of a frontier")
