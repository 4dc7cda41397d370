"""The methods that are compared (paper, section 6.1): which points each may use, and whether it scales frequency."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from kareus.artifacts.records import suggest
from kareus.errors import ArtifactError, ConfigError
from kareus.pipeline.config import PipelineSlice
from kareus.profile.programs import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How the plans of a method are made."""

    name: str
    points_of: str
    """Method of the microbatch frontiers that it plans with."""
    has_frontier: bool
    """Whether it plans over its points' frontier; if not, it has one plan, all at the maximum clock."""
    at_default_clocks: str
    """Method of the plans that are nearest where no clock may be locked."""

    @property
    def needs(self) -> Execution:
        """What of its points takes the most measuring: only `overlap` needs searches of partitions."""
        return UNSEARCHED.get(self.points_of, Execution.OVERLAP)


UNSEARCHED = {
    "sequential": Execution.SEQUENTIAL,
    "nanobatching": Execution.NANOBATCHING,
    "kareus-without-kernel-schedule": Execution.NANOBATCHING,
}
"""What points take whose partitions run by default schedules."""

METHODS = (
    Method(
        name="sequential",
        points_of="sequential",
        has_frontier=False,
        at_default_clocks="sequential",
    ),
    Method(
        name="sequential+perseus",
        points_of="sequential",
        has_frontier=True,
        at_default_clocks="sequential",
    ),
    Method(
        name="nanobatching",
        points_of="nanobatching",
        has_frontier=False,
        at_default_clocks="nanobatching",
    ),
    Method(
        name="nanobatching+perseus",
        points_of="nanobatching",
        has_frontier=True,
        at_default_clocks="nanobatching",
    ),
    Method(
        name="kareus",
        points_of="kareus",
        has_frontier=True,
        at_default_clocks="kareus-without-frequency",
    ),
    Method(
        name="kareus-without-frequency",
        points_of="kareus-without-frequency",
        has_frontier=True,
        at_default_clocks="kareus-without-frequency",
    ),
    Method(
        name="kareus-without-kernel-schedule",
        points_of="kareus-without-kernel-schedule",
        has_frontier=True,
        at_default_clocks="nanobatching",
    ),
)
REQUIRED = ("sequential", "kareus")
"""Microbatch frontiers that exist for every workload; an odd microbatch has no halves, so only these."""


def method_named(name: str) -> Method:
    """The method of this name.

    Raises:
        ArtifactError: no such method.
    """
    for method in METHODS:
        if method.name == name:
            return method
    raise ArtifactError(f"method '{name}' is not known; {suggest(name, [method.name for method in METHODS])}.")


def most_needed(methods: Iterable[Method]) -> Execution:
    """What takes the most measuring of all that some methods need.

    Example:
        >>> most_needed([method_named("nanobatching+perseus"), method_named("sequential")])
        <Execution.NANOBATCHING: 'nanobatching'>
    """
    return max((method.needs for method in methods), key=list(Execution).index)


def planned_beside(*names: str) -> list[Method]:
    """Methods that need no more measuring than some of them: these and what their plans are compared with.

    Example:
        >>> [method.name for method in planned_beside("sequential+perseus")]
        ['sequential', 'sequential+perseus']
    """
    needed = most_needed(map(method_named, names))
    return [method for method in METHODS if list(Execution).index(method.needs) <= list(Execution).index(needed)]


def check_method(name: str) -> None:
    """Check that a method that a user names exists.

    Raises:
        ConfigError: no such method.
    """
    names = [method.name for method in METHODS]
    if name not in names:
        raise ConfigError(f"method={name!r}: not known; {suggest(str(name), names)}.")


def point_method(method: str) -> str:
    """Method of the microbatch frontiers that the plans of `method` are made of.

    Raises:
        ArtifactError: no such method.
    """
    return method_named(method).points_of


def method_points(config: PipelineSlice, microbatch: pl.DataFrame, method: Method) -> pl.DataFrame:
    """Rows of a table `MICROBATCH` that `method` plans with while changes of clock are free."""
    rows = microbatch.filter(pl.col("method") == method.points_of)
    if method.has_frontier:
        return rows.filter("on_frontier")
    return rows.filter(pl.col("frequency_mhz") == config.gpu.maximum_clock_mhz)
