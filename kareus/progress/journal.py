"""The progress of a stage that measures: a small file, replaced whole, that a display may read at any time.

It is for the eye. Nothing is computed from it, so it is not synced to disk, and a stage that cannot write it goes on.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kareus.artifacts.files import read_json, temporary_of
from kareus.artifacts.records import from_plain
from kareus.errors import ArtifactError, ConfigError

SUFFIX = ".progress.json"
"""End of a journal's name, which distinguishes it from a log."""

_WRITE_EVERY_S = 0.2


@dataclass(slots=True, kw_only=True)
class Standing:
    """Progress of one job."""

    budget: int
    """Largest number of measurements."""
    space: int
    """Number of candidates."""
    measured: int = 0
    """Number measured so far, now or in the store."""
    looked: int = 0
    round: int | None = None
    """Round that is under way, 0 first; None where there are none."""
    hypervolume: float | None = None
    """At the end of the round before, as in the table of rounds; None before there is one."""

    @property
    def share(self) -> float:
        """Share of the budget that is spent; a search may end before it is."""
        return min(self.measured / self.budget, 1.0) if self.budget else 0.0


class Journal:
    """The file of one job. Change `standing`, then call `keep`, as often as you like."""

    def __init__(self, path: Path | None, standing: Standing) -> None:
        """Start the journal; with no path nothing is ever written."""
        self.standing = standing
        self._path = path
        self._next_s = 0.0
        self.keep()

    def keep(self) -> None:
        """Write the progress, unless that was done a moment ago."""
        now_s = time.monotonic()
        if self._path is None or now_s < self._next_s:
            return
        self._next_s = now_s + _WRITE_EVERY_S
        temporary = temporary_of(self._path)
        with contextlib.suppress(OSError):  # the measurements matter, not this
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(self.standing)) + "\n", encoding="utf-8")
            temporary.replace(self._path)


OpenJournal = Callable[[Standing], Journal]
"""Starts the journal of a job once it is known how much there is to measure."""


def no_journal(standing: Standing) -> Journal:
    """Return a journal that is never written."""
    return Journal(None, standing)


def read_standing(path: Path, since_s: float) -> Standing | None:
    """Read a journal.

    Args:
        path: of the journal.
        since_s: start of the job (seconds since 1970); what was written before is of an earlier one.

    Returns:
        None if there is no journal yet or it cannot be read.
    """
    try:
        if path.stat().st_mtime < since_s:
            return None
        return from_plain(Standing, read_json(path))
    except (OSError, ArtifactError, ConfigError):
        return None
