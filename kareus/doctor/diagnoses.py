"""Diagnoses of a machine: what was looked at, what it is like, and what to do about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class State(IntEnum):
    """How good a diagnosis is; a higher one is worse."""

    OK = 0
    ABSENT = 1
    """Not there, and only needed for what it names."""
    LIMITED = 2
    """Kareus does less than it could here."""
    BROKEN = 3
    """Something that is there does not work."""

    @property
    def word(self) -> str:
        """Word for it in tables and JSON."""
        return self.name.lower()


EXIT_CODES = {State.OK: 0, State.ABSENT: 0, State.LIMITED: 3, State.BROKEN: 4}
"""Exit codes of the command; 1 and 2 are those of a reader that is gone and of bad arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One thing that was looked at."""

    check: str
    """What was looked at, such as `torch`."""
    state: State
    result: str
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


def worst(findings: Sequence[Diagnosis]) -> State:
    """Return the worst state of all."""
    return max((finding.state for finding in findings), default=State.OK)
