"""What ranks say of themselves in the store of their rendezvous, for one start of all of them.

Anybody who reaches the store may write to it: what is read may be something else, which is an error or left out.
"""

import contextlib
import math
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from kareus.artifacts.records import Record, canonical_json, from_plain, parse_json
from kareus.errors import ConfigError, EngineError, KareusError, refused_by_system
from kareus.launch.heartbeats import JOIN_TIMEOUT_S

LOOK_S = 0.2
"""Time between two looks at the store; longer with many ranks, for all look at the same."""
_MOST_CHARACTERS = 8192
"""Characters of a failure that are told; the middle of a longer one is left out."""
_MOST_FAILURES = 1000
GOES_ON = "start it again to go on from the last checkpoint, if there is one"
"""What is said of a training that was interrupted."""
HELLO, WELCOME = "kareus-watch/hello-{}", "kareus-watch/welcome-{}-{}"
FAILURES, ENDED, DONE, LEFT, BEAT, PROCESS = "failures", "ended", "done", "left", "beat-{}", "process-{}-{}"
"""Keys of a start."""


class Urgency(IntEnum):
    """Order in which failures are reported."""

    FATAL = 0
    """An error that a user can act on."""
    DEATH = 1
    """The loss of a rank's process."""
    CONSEQUENCE = 2
    """An error that followed from one of the others."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Failure:
    """A failure of a rank; the least is reported."""

    urgency: Urgency
    rank: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat."""

    number: int
    """From 1; the next one has another."""
    steps: int
    doing: str | None
    done: bool
    """Whether the rank needs no other rank any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process of a rank, for the others of its machine."""

    rank: int
    number: int
    start: int
    """As `kareus.processes.start_of`: numbers are used again."""


class SharedStore(Protocol):
    """Key-value store in which ranks find each other, such as torch's; a lost one raises RuntimeError."""

    def set(self, key: str, value: str) -> Any:
        """Publish a value."""

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0, and return it."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""


class StartStore:
    """The part of a store that is of one start of all ranks; torchrun keeps a store when it starts them again."""

    def __init__(self, store: SharedStore, run: str) -> None:
        """Take the part of the start with the identity `run`."""
        self._store, self._run = store, run

    def set(self, key: str, value: str) -> None:
        """Publish a value."""
        self._store.set(f"{self._run}/{key}", value)

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""
        return self._store.get(f"{self._run}/{key}")

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0, and return it."""
        return self._store.add(f"{self._run}/{key}", amount)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys are there."""
        return self._store.check([f"{self._run}/{key}" for key in keys])


def joined(store: SharedStore, rank: int) -> str:
    """Wait for rank 0 and return its identity of this start.

    Where torchrun starts ranks again, the store may have what a rank 0 that died has said. So a rank greets with a word
    of its own, which only a rank 0 that lives answers.
    """
    word = secrets.token_hex(8)
    with contextlib.suppress(RuntimeError):
        store.set(HELLO.format(rank), word)
        if wait_until(lambda: store.check([WELCOME.format(rank, word)]), JOIN_TIMEOUT_S):
            return store.get(WELCOME.format(rank, word)).decode(errors="replace")
    raise EngineError(
        f"rank {rank}: rank 0 does not come; check that it runs, and that machines reach each other at MASTER_ADDR."
    )


def tell(store: SharedStore, failure: Failure) -> None:
    """Publish a failure beside those of others."""
    store.set(f"{FAILURES}-{store.add(FAILURES, 1)}", canonical_json(failure))


def failures_of(store: SharedStore) -> list[Failure]:
    """Return what was told, at least one; what is no failure is left out."""
    failures = []
    for number in range(1, min(store.add(FAILURES, 0), _MOST_FAILURES) + 1):
        with contextlib.suppress(ConfigError):
            failures.append(read(Failure, store, f"{FAILURES}-{number}"))
    readable = [failure for failure in failures if failure is not None]  # who counted one may have died before it told
    return readable or [Failure(urgency=Urgency.CONSEQUENCE, rank=0, message="a rank failed and did not say why.")]


def read(record: type[Record], store: SharedStore, key: str) -> Record | None:
    """Return a record of the store, or None where there is none.

    Raises:
        ConfigError: it is something else.
    """
    return from_plain(record, parse_json(store.get(key).decode(errors="replace"))) if store.check([key]) else None


def wait_until(condition: Callable[[], bool], seconds: float = math.inf) -> bool:
    """Wait until a condition holds, at most so long; return whether it does."""
    deadline_s, pause_s = time.monotonic() + seconds, 0.01
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
    return True


def failure_of(rank: int, error: BaseException) -> Failure:
    """Return an error as a failure; the message of one that a user cannot act on has its traceback."""
    urgency, message = Urgency.FATAL, str(error)
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        message = f"interrupted; {GOES_ON}."
    elif isinstance(error, OSError) and not isinstance(error, ConnectionError):  # which follows from a peer's end
        message = f"rank {rank}: {refused_by_system(error)}"
    elif not isinstance(error, KareusError):
        urgency, message = Urgency.CONSEQUENCE, f"rank {rank}: {''.join(traceback.format_exception(error)).rstrip()}"
    if len(message) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        message = f"{message[:half]}\n...\n{message[-half:]}"
    return Failure(urgency=urgency, rank=rank, message=message)
