"""The search space of execution schedules: the record of Hydra group `space`, and what the stage `schedule` reads."""

from dataclasses import dataclass

from kareus.artifacts.ranges import within
from kareus.gpu_model.gpu import Gpu
from kareus.model.parallelism import MOST_GPUS

MOST_CANDIDATES = 100_000
"""Largest number of candidates of a search space for each launch operator, and of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpaceConfig:
    """SM counts to search (paper, appendix on MBO hyperparameters); frequencies belong to the GPU."""

    small_group_below: int
    """Groups with fewer GPUs use the `small_group` range."""
    small_group_sm_max: int
    """Largest number of SMs of a collective in a small group."""
    small_group_sm_stride: int
    """Smallest number of SMs in a small group, and the distance between two."""
    sm_max: int
    """Largest number of SMs of a collective."""
    sm_stride: int
    """Smallest number of SMs, and the distance between two."""

    def __post_init__(self) -> None:
        within(self, 0, MOST_GPUS, "GPUs", "small_group_below")
        within(self, 1, 100_000, "SMs", "small_group_sm_max", "small_group_sm_stride", "sm_max", "sm_stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSlice:
    """The part of the configuration that enumerating execution schedules reads."""

    gpu: Gpu
    space: SearchSpaceConfig


def sm_allocations(group_size: int, space: SearchSpaceConfig) -> tuple[int, ...]:
    """Return the SM counts to search for a collective among `group_size` GPUs: multiples of the stride."""
    small = group_size < space.small_group_below
    stride = space.small_group_sm_stride if small else space.sm_stride
    largest = space.small_group_sm_max if small else space.sm_max
    return tuple(range(stride, largest + 1, stride))
