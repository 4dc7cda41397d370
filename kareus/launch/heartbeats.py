"""Heartbeats of ranks, and how long a rank may send none, or make no progress.

A thread sends them, so that a compilation or a checkpoint that takes long does not silence a rank. They carry the
number of steps that the main thread has begun: if it does not change any more, the rank hangs.
"""

import dataclasses
import time

from kareus.artifacts.ranges import within

JOIN_TIMEOUT_S = 300.0
"""Longest wait at the start: of a rank for rank 0, and of rank 0 for every other rank."""
_LONGEST_WAIT_S = 7 * 86_400.0
_LONGEST_INTERVAL_S = 5.0
"""Longest time between two heartbeats; at least four of them fit into `Patience.heartbeat_s`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Timeouts of ranks."""

    heartbeat_s: float = 60.0
    """Time without a heartbeat of a rank's process, such as one that is stopped, after which all end."""
    stall_s: float = 1800.0
    """Time without a new instruction, step or checkpoint of a rank whose process lives, after which all end."""

    def __post_init__(self) -> None:
        within(self, 1, _LONGEST_WAIT_S, "s", "heartbeat_s", "stall_s")

    @property
    def interval_s(self) -> float:
        """Time between two heartbeats."""
        return min(_LONGEST_INTERVAL_S, self.heartbeat_s / 4, self.stall_s / 4)

    @property
    def silence(self) -> str:
        """What is wrong with a rank that is not heard, in words."""
        return (
            f"gave no sign of life for {self.heartbeat_s:,g} s (--heartbeat), as when its process is stopped; all "
            "others end,"
        )


@dataclasses.dataclass(slots=True)
class LifeSigns:
    """Latest heartbeat of one rank, as another received it; times are of `time.monotonic`."""

    heard_s: float
    """Time of the last heartbeat."""
    moved_s: float
    """Time of the last heartbeat with progress."""
    has_joined: bool = False
    """Whether a heartbeat was received; until then `heard_s` is when the wait for it began."""
    number: int = 0
    """Of the last heartbeat."""
    steps: int = 0
    doing: str | None = None
    """What the rank's main thread began last; None while no progress is expected."""
    done: bool = False

    def hear(self, steps: int, doing: str | None) -> None:
        """Note a heartbeat."""
        now_s = self.heard_s = time.monotonic()
        self.has_joined = True
        if steps != self.steps or doing is None:
            self.moved_s = now_s
        self.steps, self.doing = steps, doing

    def missed(self, patience: Patience) -> str | None:
        """Return what is wrong with the rank, or None."""
        now_s = time.monotonic()
        if self.done:
            return None
        if not self.has_joined:
            if now_s - self.heard_s <= JOIN_TIMEOUT_S:
                return None
            return f"did not join within {JOIN_TIMEOUT_S:,g} s; check that it was started and reaches rank 0; all end,"
        if now_s - self.heard_s > patience.heartbeat_s:
            return patience.silence
        if self.doing is not None and now_s - self.moved_s > patience.stall_s:
            return (
                f"hangs: no progress for {patience.stall_s:,g} s (--stall) since it began with {self.doing}; all end,"
            )
        return None
