"""Configuration of the stage that composes microbatch frontiers, and the record of the key `iteration`."""

from dataclasses import dataclass, field

from kareus.artifacts.configuration import narrowed
from kareus.artifacts.records import ADDED, content_hash
from kareus.gpu_model.gpu import Gpu
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import PLAIN, TrainingOptions
from kareus.software.record import Software


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationConfig:
    """Parts of a training iteration that are planned besides forwards and backwards."""

    include_update: bool
    """Whether gradient reduction, gradient norm and optimizer step are instructions of the iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierSlice:
    """What composing microbatch frontiers sees."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    microbatch_size: int
    sequence_length: int
    recomputation: Recomputation
    split_backward: bool
    chunks: int
    iteration: IterationConfig
    default_collective_sm_count: int
    software: Software
    precision: Precision
    linked_gpus: int
    training: TrainingOptions = field(default=PLAIN, metadata=ADDED)


def frontier_hash(config: object) -> str:
    """Hash of the part of `config` that composing frontiers reads; `config` is a workload or another slice of it."""
    return content_hash(narrowed(config, FrontierSlice))
