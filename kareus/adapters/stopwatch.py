"""Times of what a GPU runs, read without waiting for it: events in its stream, mapped to the clock of the host.

A CUDA event has a time of the GPU's own. The host's clock when an event was recorded is a lower bound of when the GPU
reached it, and close to it whenever the host was not ahead: after every change of the clock, which waits anyway. The
largest difference over the events of an iteration is therefore how far the two clocks are apart.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in what the device runs."""

    host_s: float
    """`time.perf_counter` when it was asked for."""
    event: "torch.cuda.Event | None"
    """None on a CPU, which has run all that it was given."""


class Stopwatch(Protocol):
    """Marks moments of a device's work."""

    def mark(self) -> Mark:
        """Mark the end of what was launched so far; returns at once."""

    def times_s(self, marks: Sequence[Mark]) -> list[float] | None:
        """Return when the device reached the marks, in order, in seconds of `time.perf_counter`; None if not yet.

        The marks are used up.
        """


class HostStopwatch:
    """Implements `Stopwatch` on a CPU."""

    def mark(self) -> Mark:
        """The time now."""
        return Mark(time.perf_counter(), None)

    def times_s(self, marks: Sequence[Mark]) -> list[float] | None:
        """The times at which they were made."""
        return [mark.host_s for mark in marks]


class CudaStopwatch:
    """Implements `Stopwatch` on the current stream of the current GPU."""

    def __init__(self) -> None:
        """Record no event yet."""
        self._free: list[torch.cuda.Event] = []

    def mark(self) -> Mark:
        """Record an event."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        host_s = time.perf_counter()
        event.record()
        return Mark(host_s, event)

    def times_s(self, marks: Sequence[Mark]) -> list[float] | None:
        """Return times by the GPU's clock, moved to the host's."""
        events = [mark.event for mark in marks if mark.event is not None]
        if not all(event.query() for event in reversed(events)):  # type: ignore[no-untyped-call]
            return None
        since_first_s = [events[0].elapsed_time(event) / 1e3 for event in events]
        apart_s = max(mark.host_s - since_s for mark, since_s in zip(marks, since_first_s, strict=True))
        self._free += events
        return [apart_s + since_s for since_s in since_first_s]


def stopwatch_of(device: torch.device) -> Stopwatch:
    """Return the stopwatch of a device."""
    return CudaStopwatch() if device.type == "cuda" else HostStopwatch()
