"""Events of a run of the workflow, independent of Snakemake's types."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPlanned:
    """The jobs to do, by rule."""

    jobs: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A job began, or was handed to a cluster."""

    at_s: float
    """Seconds since 1970, as everywhere here."""
    job: int
    rule: str
    what: str
    """Description, in one line."""
    wildcards: Mapping[str, str] = field(default_factory=dict)
    logs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job ended well."""

    at_s: float
    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A job ended badly; it may be started again."""

    at_s: float
    job: int
    rule: str
    said: str = ""
    """Message of the executor."""
    logs: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of Snakemake."""

    level: Literal["info", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The user has interrupted the run; jobs that end from then on have not failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    """All that was asked for is there."""


RunEvent = JobsPlanned | Started | Finished | Failed | Said | Interrupted | NothingToDo


_LINES: list[Callable[[], list[str]]] = []
"""At most one function."""


def end_with(lines: Callable[[], list[str]]) -> None:
    """Have a run that succeeds, or has nothing to do, end with these lines; called when it is over."""
    _LINES[:] = [lines]


def answer_lines() -> list[str]:
    """Return what the run ends with; nothing if nothing was set."""
    return [line for lines in _LINES for line in lines()]
