"""The slice of the configuration that each stage sees.

A rule reruns when the text of its slice changes, so a slice holds the records that its stage reads.
"""

from dataclasses import dataclass
from typing import Any

from kareus.artifacts.configuration import narrowed, to_yaml
from kareus.artifacts.records import suggest
from kareus.artifacts.seals import sealed_text
from kareus.errors import ConfigError
from kareus.frontiers.config import FrontierSlice
from kareus.partition.config import PartitionSlice
from kareus.pipeline.config import PipelineSlice
from kareus.profile.config import ProfileSlice
from kareus.schedule.config import ScheduleSlice
from kareus.search.config import SearchSlice
from kareus.workload.config import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSlice:
    """Slice of selecting and checking a plan: the whole workload, since a plan is bound to it."""

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
    return PlanSlice(workload=workload) if cls is PlanSlice else narrowed(workload, cls)


def slice_text(workload: Workload, stage: str) -> str:
    """Text of the slice of `stage`, in YAML; the same for equal workloads."""
    return sealed_text(to_yaml(cut(workload, stage)))
