"""Callbacks that run when this process gets a signal to end, even while its main thread is inside C code.

Python runs signal handlers between two bytecodes of the main thread, and a rank that waits for a collective whose
peer has died never gets there. The interpreter's wakeup descriptor is written at once, whichever handler in Python
there is; a thread waits on it. So handlers of others, such as a trainer's that saves a checkpoint, stay as they are.
Only where a signal would end the process at once, or the interpreter would not notice it, there is a handler of ours.
"""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NO_DESCRIPTOR = -1
_NO_SIGNAL = 0
"""What is written to our descriptor to know when all before it has been read."""


@contextlib.contextmanager
def on_termination(restore: Callable[[], None]) -> Iterator[None]:
    """Call `restore` from a thread on SIGTERM, SIGINT or SIGHUP. Call it from the main thread.

    Then the handler that is there runs in the main thread, as it would without this. Where there is none, SIGTERM and
    SIGHUP raise `SystemExit`, so that `finally` blocks run. Signals that are ignored stay ignored (`nohup`), and what
    a library handles in C is not noticed. Several may be entered, and left in any order.
    """
    _spare_children()
    _watch.enter(restore)
    try:
        yield
    finally:
        _watch.leave(restore)


def keep_watching() -> None:
    """Notice signals again after another library took the wakeup descriptor, or set a handler back to the default.

    It takes microseconds, and does nothing outside of the main thread or where nothing is to be called.
    """
    if _watch.callbacks and threading.current_thread() is threading.main_thread():
        _watch.take()


@dataclass(frozen=True, slots=True)
class _Descriptor:
    """A wakeup descriptor of another library. Once its owner has closed it, its number may be any other file's."""

    number: int
    file: os.stat_result

    @classmethod
    def of(cls, number: int) -> "_Descriptor | None":
        """Return the descriptor of a number; None for none and for one that is closed."""
        with contextlib.suppress(OSError, ValueError):
            return cls(number, os.fstat(number))
        return None

    def is_open(self) -> bool:
        now = self.of(self.number)
        return now is not None and os.path.samestat(now.file, self.file)


class _Watch:
    """What is called on signals. There is one: a process has one wakeup descriptor and one handler a signal."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self._reader = self._writer = _NO_DESCRIPTOR
        self._others: _Descriptor | None = None
        """Of another library, such as asyncio, which gets what ours gets."""
        self._thread: threading.Thread | None = None
        self._caught_up = threading.Event()

    def enter(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)
        if self._thread is None:
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._thread = threading.Thread(target=self._run, args=(self._reader,), name="signals", daemon=True)
            self._thread.start()
        self.take()

    def leave(self, callback: Callable[[], None]) -> None:
        """Call `callback` no longer; the last one puts all back, if it leaves from the main thread."""
        if callback not in self.callbacks:  # it is the parent's, from which this process was forked
            return
        self._catch_up()
        self.callbacks.remove(callback)
        if self.callbacks or self._thread is None or threading.current_thread() is not threading.main_thread():
            return
        self._put_back()
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)
        self._thread = None

    def _catch_up(self) -> None:
        """Wait for what is called on signals by now: one of them may have ended what would have restored otherwise."""
        if self._thread is None or threading.current_thread() is self._thread:
            return
        self._caught_up.clear()
        with contextlib.suppress(OSError):  # full
            os.write(self._writer, bytes([_NO_SIGNAL]))
            self._caught_up.wait()

    def take(self) -> None:
        """Have the interpreter write signals to our descriptor, also those that would end the process at once."""
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end)
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if before != self._writer:
            self._others = _Descriptor.of(before)

    def forget(self) -> None:
        """Undo all of this in a forked process: the pipe and the clock are its parent's."""
        if self._thread is None:
            return
        self._put_back()
        os.close(self._writer)
        os.close(self._reader)
        self._thread = None
        self.callbacks.clear()

    def _put_back(self) -> None:
        for number in _SIGNALS:
            if signal.getsignal(number) is _end:  # another one is of somebody who came later
                signal.signal(number, signal.SIG_DFL)
        current = signal.set_wakeup_fd(_NO_DESCRIPTOR)
        theirs = self._others if current == self._writer else _Descriptor.of(current)
        if theirs is not None and theirs.is_open():
            signal.set_wakeup_fd(theirs.number)
        self._others = None

    def _run(self, reader: int) -> None:
        while numbers := os.read(reader, 16):
            if any(number in _SIGNALS for number in numbers):
                for callback in self.callbacks.copy():
                    callback()
            if _NO_SIGNAL in numbers:
                self._caught_up.set()
            others = self._others
            if others is not None and others.is_open():
                with contextlib.suppress(OSError):  # full, so that its owner wakes up anyway; or closed
                    os.write(others.number, numbers.replace(bytes([_NO_SIGNAL]), b""))


_watch = _Watch()


@functools.cache
def _spare_children() -> None:
    os.register_at_fork(after_in_child=_watch.forget)


def _end(number: int, frame: FrameType | None) -> None:
    """End the process with `finally` blocks, instead of at once.

    A library that took this for somebody's handler may call it after its own. Without us it would have found none.
    """
    if signal.getsignal(number) is _end:
        raise SystemExit(128 + number)  # as shells report a process that a signal ended
