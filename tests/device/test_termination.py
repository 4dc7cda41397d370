"""Signals that end a process: callbacks run at once, and handlers and descriptors of others go on as without us."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from helpers.fake_device import wait_until

from kareus.device.termination import keep_watching, on_termination

TERM = signal.SIGTERM


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    """Handlers of a new process, and those of this one afterwards."""
    before = signal.signal(TERM, signal.SIG_DFL)
    yield
    signal.signal(TERM, before)
    assert signal.set_wakeup_fd(-1) == -1


class Handler:
    """What a trainer does on a signal: it takes note, and goes on."""

    def __init__(self) -> None:
        self.before = signal.getsignal(TERM)
        self.got: list[int] = []
        signal.signal(TERM, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.got.append(number)


class Composed(Handler):
    """One that also calls the handler that it has replaced."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        super().__call__(number, frame)
        if callable(self.before):
            self.before(number, frame)


@pytest.mark.parametrize("kind", [Handler, Composed])
def test_a_handler_from_before_stays(kind: type[Handler]) -> None:
    handler, restored = kind(), []
    with on_termination(lambda: restored.append(True)):
        signal.raise_signal(TERM)
        wait_until(lambda: restored)
        assert handler.got == [TERM]
    assert signal.getsignal(TERM) is handler


@pytest.mark.parametrize("kind", [Handler, Composed])
def test_a_handler_from_afterwards_does_as_without_us(kind: type[Handler]) -> None:
    restored: list[bool] = []
    with on_termination(lambda: restored.append(True)):
        handler = kind()
        signal.raise_signal(TERM)
        wait_until(lambda: restored)
        assert handler.got == [TERM]
    assert signal.getsignal(TERM) is handler


def test_the_default_becomes_an_exit_with_finally_blocks() -> None:
    restored: list[bool] = []
    with pytest.raises(SystemExit) as ended, on_termination(lambda: restored.append(True)):
        signal.raise_signal(TERM)
    assert ended.value.code == 128 + TERM
    assert signal.getsignal(TERM) is signal.SIG_DFL


def test_an_exit_at_once_waits_for_what_restores() -> None:
    """The exception may have interrupted a `finally` block before it restored anything."""
    restored: list[bool] = []
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # no other thread gets the interpreter before this one waits
    try:
        with pytest.raises(SystemExit), on_termination(lambda: restored.append(True)):
            signal.raise_signal(TERM)
        assert restored
    finally:
        sys.setswitchinterval(interval_s)


def test_ctrl_c_stays_an_interrupt() -> None:
    restored: list[bool] = []
    with pytest.raises(KeyboardInterrupt), on_termination(lambda: restored.append(True)):
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            wait_until(lambda: restored)


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(TERM, signal.SIG_IGN)
    with on_termination(lambda: pytest.fail("nobody is to end")):
        signal.raise_signal(TERM)
    assert signal.getsignal(TERM) is signal.SIG_IGN


def test_a_default_that_a_trainer_puts_back_is_noticed() -> None:
    with pytest.raises(SystemExit), on_termination(lambda: None):
        signal.signal(TERM, signal.SIG_DFL)  # as trainers do at the end of one training of several
        keep_watching()
        signal.raise_signal(TERM)


@pytest.mark.parametrize("first", ["loop", "watch"])
def test_a_loop_of_asyncio_gets_its_signals(first: str) -> None:
    """Whoever takes the descriptor first."""
    loop, got, restored = asyncio.new_event_loop(), [], []  # type: ignore[var-annotated]

    def got_one() -> None:
        got.append(TERM)
        loop.stop()

    if first == "loop":
        loop.add_signal_handler(TERM, got_one)
    with on_termination(lambda: restored.append(True)):
        if first == "watch":
            loop.add_signal_handler(TERM, got_one)
            keep_watching()
        loop.call_soon(signal.raise_signal, TERM)
        loop.call_later(20, loop.stop)
        loop.run_forever()
        wait_until(lambda: restored)
    assert got == [TERM]
    theirs = signal.set_wakeup_fd(-1)
    assert theirs >= 0
    signal.set_wakeup_fd(theirs)
    loop.remove_signal_handler(TERM)
    loop.close()


def test_a_descriptor_that_its_owner_has_closed_is_not_put_back() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    with on_termination(lambda: None):
        os.close(writer)
    assert signal.set_wakeup_fd(-1) == -1
    os.close(reader)


def test_no_byte_reaches_another_file_that_got_a_closed_descriptor(tmp_path: Path) -> None:
    """A library, as trio does, puts back the descriptor that it found, which is ours, and closes its own."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before, restored = signal.signal(TERM, lambda *_: None), list[bool]()
    with on_termination(lambda: restored.append(True)):
        ours = signal.set_wakeup_fd(writer)
        keep_watching()
        signal.set_wakeup_fd(ours)
        with (tmp_path / "checkpoint").open("wb") as checkpoint:
            os.dup2(checkpoint.fileno(), writer)
            signal.raise_signal(TERM)
            wait_until(lambda: restored)
        signal.raise_signal(TERM)
        wait_until(lambda: len(restored) == 2)  # the first one is over
        assert (tmp_path / "checkpoint").read_bytes() == b""
    signal.signal(TERM, before)
    os.close(reader)
    os.close(writer)


FORKED = """
import os
from kareus.device.termination import on_termination
with on_termination(lambda: None):
    child = os.fork()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0
raise SystemExit(code)
"""


def test_a_forked_process_leaves_what_its_parent_entered() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True)


@pytest.mark.parametrize("order", ["first", "second"])
def test_two_may_be_left_in_any_order(order: str) -> None:
    restored: list[str] = []
    watches = {name: on_termination(lambda name=name: restored.append(name)) for name in ("first", "second")}  # type: ignore[misc]
    for watch in watches.values():
        watch.__enter__()
    watches.pop(order).__exit__(None, None, None)
    ((left, watch),) = watches.items()
    try:
        signal.raise_signal(TERM)
        pytest.fail("the process was to end")
    except SystemExit:
        wait_until(lambda: restored)
    assert restored == [left]
    watch.__exit__(None, None, None)
    assert signal.getsignal(TERM) is signal.SIG_DFL
