"""Callbacks that run when this process gets a signal to end, even while its main thread is inside C code.

Python runs signal handlers between two bytecodes of the main thread, and a rank that waits for a collective whose
peer has died never gets there. The interpreter's wakeup descriptor is written at once; a thread waits on it.
"""

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def on_termination(restore: Callable[[], None]) -> Iterator[None]:
    """Call `restore` from a thread on SIGTERM, SIGINT or SIGHUP; then the main thread ends as Python does on Ctrl-C.

    SIGTERM and SIGHUP raise `SystemExit` there, so that `finally` blocks run. Signals that are ignored stay ignored
    (`nohup`). Call it from the main thread.
    """
    _spare_children()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    watcher = threading.Thread(target=_watch, args=(reader, restore), daemon=True)
    before = {s: signal.signal(s, _end) for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN}
    descriptor_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
        watcher.join()
        os.close(reader)


@functools.cache
def _spare_children() -> None:
    """Undo all of this in processes that are forked, such as workers that load data: the pipe is their parent's."""
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is _end:
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    raise SystemExit(128 + number)  # as shells report a process that a signal ended


def _watch(reader: int, restore: Callable[[], None]) -> None:
    while numbers := os.read(reader, 16):
        if any(number in _SIGNALS for number in numbers):
            restore()
