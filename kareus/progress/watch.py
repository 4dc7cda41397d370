"""Watching a run: events update its state, and the display gets each event and a regular tick."""

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kareus.progress.events import Failed, Finished, RunEvent
from kareus.progress.history import add_to_history, read_history, usual_s
from kareus.progress.run_state import RunState
from kareus.progress.shows import Show

GRACE_S = 0.2
"""Time that a failure waits for news that the run was interrupted."""


class Watch:
    """State and display of one run; events may come from one thread and the end from another."""

    def __init__(self, show: Show, history: Path | None = None) -> None:
        """Begin to watch; durations of earlier runs are in the file `history`, and those of this run are added."""
        self._show = show
        self._history = history
        self._state = RunState(began_s=time.time(), usual_s=usual_s(read_history(history)) if history else {})
        self._has_reader = True
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="kareus-progress", daemon=True)
        self._ticking.start()

    def tell(self, event: RunEvent) -> None:
        """Something happened."""
        if isinstance(event, Failed):
            self._wait_for_interruption()
        with self._lock:
            if isinstance(event, Finished | Failed):  # while it still is among the running, and has a name
                if not (self._state.is_interrupted and isinstance(event, Failed)):
                    self._display(lambda: self._show.tell(event, self._state))
                self._state.apply(event)
            else:
                self._state.apply(event)
                self._display(lambda: self._show.tell(event, self._state))

    def interrupt(self) -> None:
        """The user has interrupted the run; may be called from a signal handler, so it takes no lock."""
        self._state.is_interrupted = True

    def close(self) -> None:
        """The run is over; may be called again."""
        if self._over.is_set():
            return
        self._over.set()
        self._ticking.join()
        with self._lock:
            self._display(lambda: self._show.end(self._state, time.time()))
            if self._history is not None and self._state.durations_s:
                add_to_history(self._history, self._state.durations_s)

    def _wait_for_interruption(self) -> None:
        """Wait a moment: a job that Ctrl-C ends may be gone before the main thread is told of it."""
        until_s = time.monotonic() + GRACE_S
        while not self._state.is_interrupted and time.monotonic() < until_s:
            time.sleep(GRACE_S / 20)

    def _tick(self) -> None:
        while not self._over.wait(self._show.every_s):
            with self._lock:
                self._display(lambda: self._show.tick(self._state, time.time()))

    def _display(self, act: Callable[[], None]) -> None:
        """Show something; once the reader is gone, such as `head`, the run goes on unseen."""
        if not self._has_reader:
            return
        try:
            act()
        except BrokenPipeError:
            self._has_reader = False
            for stream in (sys.stdout, sys.stderr):
                _drop_if_broken(stream.fileno())


def _drop_if_broken(descriptor: int) -> None:
    """Let a closed pipe swallow what is written to it, or the interpreter would complain about it at its end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
