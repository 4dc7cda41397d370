"""Watching a run: events update its state, and the display gets each event and a regular tick."""

import threading
import time

from kareus.progress.events import Failed, Finished, RunEvent
from kareus.progress.run_state import RunState
from kareus.progress.shows import Show


class Watch:
    """State and display of one run; events may come from one thread and the end from another."""

    def __init__(self, show: Show) -> None:
        """Begin to watch."""
        self._show = show
        self._state = RunState(began_s=time.time())
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="kareus-progress", daemon=True)
        self._ticking.start()

    def tell(self, event: RunEvent) -> None:
        """Something happened."""
        with self._lock:
            if isinstance(event, Finished | Failed):  # while it still is among the running, and has a name
                self._show.tell(event, self._state)
                self._state.apply(event)
            else:
                self._state.apply(event)
                self._show.tell(event, self._state)

    def close(self) -> None:
        """The run is over; may be called again."""
        if self._over.is_set():
            return
        self._over.set()
        self._ticking.join()
        with self._lock:
            self._show.end(self._state, time.time())

    def _tick(self) -> None:
        while not self._over.wait(self._show.every_s):
            with self._lock:
                self._show.tick(self._state, time.time())
