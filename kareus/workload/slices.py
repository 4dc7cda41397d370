"""The slice of the configuration that each stage sees.

A rule reruns when the text of its slice changes, so a slice holds the records that its stage reads.
"""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kareus.artifacts.files import read_text
from kareus.artifacts.records import content_hash, from_plain, suggest, to_plain
from kareus.artifacts.seals import check_text_if_sealed, sealed_text
from kareus.errors import ArtifactError, ConfigError
from kareus.workload.config import (
    MeasurementProtocol,
    Model,
    Parallelism,
    PipelineConfig,
    SearchConfig,
    SearchSpaceConfig,
    TestbedConfig,
    Workload,
)
from kareus.workload.gpu import Gpu

Slice = TypeVar("Slice")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSlice:
    """What extracting partitions sees."""

    model: Model
    parallelism: Parallelism
    microbatch_size: int
    sequence_length: int
    activation_checkpointing: bool
    split_backward: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlice:
    """What enumerating execution schedules sees."""

    gpu: Gpu
    space: SearchSpaceConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSlice:
    """What profiling components and whole instructions sees."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    testbed: TestbedConfig
    protocol: MeasurementProtocol
    microbatch_size: int
    sequence_length: int
    activation_checkpointing: bool
    split_backward: bool
    chunks: int
    confirmations: int
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchSlice:
    """What searching a partition sees."""

    gpu: Gpu
    testbed: TestbedConfig
    protocol: MeasurementProtocol
    search: SearchConfig
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrontierSlice:
    """What composing microbatch frontiers sees."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    microbatch_size: int
    sequence_length: int
    activation_checkpointing: bool
    split_backward: bool
    chunks: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSlice:
    """What solving iteration frontiers sees."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    pipeline: PipelineConfig
    microbatch_size: int
    num_microbatches: int
    sequence_length: int
    activation_checkpointing: bool

    @property
    def split_backward(self) -> bool:
        """Whether a backward is two instructions."""
        return self.pipeline.schedule.splits_backward

    @property
    def chunks(self) -> int:
        """Chunks of each stage's layers."""
        return self.pipeline.chunks


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanSlice:
    """What selecting and checking a plan sees: everything, since a plan is bound to its workload."""

    workload: Workload


SLICES: dict[str, type] = {
    "partition": PartitionSlice,
    "schedule": ScheduleSlice,
    "profile": ProfileSlice,
    "search": SearchSlice,
    "frontier": FrontierSlice,
    "pipeline": PipelineSlice,
    "plan": PlanSlice,
}
"""The slice of each stage."""


def cut(workload: Workload, stage: str) -> Any:
    """Cut the slice of `stage` out of a workload.

    Raises:
        ConfigError: no such stage.
    """
    if stage not in SLICES:
        raise ConfigError(f"no stage '{stage}' has a slice of the configuration; {suggest(stage, SLICES)}.")
    cls = SLICES[stage]
    return PlanSlice(workload=workload) if cls is PlanSlice else _narrowed(workload, cls)


def subject_of(config: Workload | ProfileSlice | FrontierSlice | PipelineSlice) -> str:
    """What the tables of a configuration are about: the hash of the slice that extraction sees."""
    return content_hash(_narrowed(config, PartitionSlice))


def frontier_hash(config: Workload | PipelineSlice) -> str:
    """Hash of the slice with which the microbatch frontiers of a configuration are composed."""
    return content_hash(_narrowed(config, FrontierSlice))


def slice_text(workload: Workload, stage: str) -> str:
    """Text of the slice of `stage`, in YAML; the same for equal workloads."""
    return sealed_text(to_yaml(cut(workload, stage)))


def _narrowed(config: object, cls: type[Slice]) -> Slice:
    return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def to_yaml(record: Any) -> str:
    """YAML text of a record, keys in the order of its fields."""
    text: str = yaml.safe_dump(to_plain(record), sort_keys=False, width=120, allow_unicode=True)
    return text


def load_slice(path: Path, cls: type[Slice]) -> Slice:
    """Read a slice, or a whole workload (`Workload`), strictly.

    Raises:
        ArtifactError: the file is missing, is not YAML, or has an unknown or missing key or a value of another type.
    """
    text = read_text(path)
    try:
        record = from_plain(cls, yaml.safe_load(text))  # first, since it names the key that is wrong
        check_text_if_sealed(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ArtifactError(f"{path}: not valid YAML{where}; delete it and rerun the stage that makes it.") from error
    except ConfigError as error:
        problem = str(error).rstrip(".")
        raise ArtifactError(f"{path}: {problem}. Delete it and rerun the stage that makes it.") from error
    return record
