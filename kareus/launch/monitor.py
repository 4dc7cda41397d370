"""One rank's own part in the watching of ranks: its progress, and how its process is ended from a thread."""

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from kareus.errors import KareusError, printable_lines

EXIT_CODE = 2
_EXIT_TIMEOUT_S = 10.0
"""Longest time that the cleanup callbacks of a process may take."""


class RankMonitor:
    """Progress and cleanup of one rank; made by `watched`."""

    def __init__(self, rank: int, name: str) -> None:
        """Monitor `rank`; messages begin with `name`."""
        self.rank = rank
        self.run = secrets.token_hex(8)
        """Identity of this start of all ranks; rank 0's is used by all."""
        self.steps = 0
        """Number of times that the main thread reported progress."""
        self.doing: str | None = None
        """What the main thread began last; None while no progress is expected."""
        self.remains = "there is no checkpoint yet."
        """What a next start can go on from, the end of a message."""
        self._name = name
        self._cleanups: list[Callable[[], None]] = []
        self._ending = threading.Lock()

    def progress(self, doing: str) -> None:
        """Note that the main thread has made progress, and what it begins to do now."""
        self.steps += 1
        self.doing = doing

    def keep(self) -> None:
        """Note that the training has a checkpoint of all ranks."""
        self.remains = "the last checkpoint is whole."

    def before_end(self, cleanup: Callable[[], None]) -> None:
        """Register a cleanup callback. It must be idempotent: other code may call it on a normal exit."""
        self._cleanups.append(cleanup)

    def end(self, reason: str | None = None) -> NoReturn:
        """Print `reason`, clean up and end this process now, even if its main thread or a callback hangs."""
        self._ending.acquire()  # a second thread waits here until the process ends
        try:
            late = threading.Timer(_EXIT_TIMEOUT_S, os._exit, (EXIT_CODE,))  # a driver may never answer
            late.daemon = True
            late.start()
            if reason is not None:
                self._print(reason)
            for cleanup in self._cleanups:
                try:
                    cleanup()
                except (KareusError, OSError) as error:
                    self._print(f"{error} Run `kareus clocks reset`.")
        finally:
            os._exit(EXIT_CODE)

    def _print(self, message: str) -> None:
        with contextlib.suppress(OSError):  # stderr may be closed, and clocks are still to be restored
            sys.stderr.write(f"{self._name}: {printable_lines(message)}\n")  # it may be of another process
            sys.stderr.flush()
