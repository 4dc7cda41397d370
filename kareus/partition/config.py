"""Configuration of the stage that extracts partitions, and the name of what is extracted."""

from dataclasses import dataclass, field

from kareus.artifacts.configuration import narrowed
from kareus.artifacts.records import ADDED, content_hash
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import PLAIN, TrainingOptions
from kareus.software.record import Software


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSlice:
    """What extracting partitions sees."""

    model: Model
    parallelism: Parallelism
    microbatch_size: int
    sequence_length: int
    recomputation: Recomputation
    split_backward: bool
    software: Software
    precision: Precision
    linked_gpus: int
    training: TrainingOptions = field(default=PLAIN, metadata=ADDED)


def subject_of(config: object) -> str:
    """Hash of the part of `config` that extraction reads, the subject of tables; `config` is a workload or a slice."""
    return content_hash(narrowed(config, PartitionSlice))
