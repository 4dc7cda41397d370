"""All ranks end when one fails, and rank 0 says why, once.

A rank that waits in a collective for one that has gone may wait for ever. So every rank keeps a connection to rank 0;
the kernel closes it when a rank dies, however it dies, or its whole machine is gone. Rank 0 then says what happened and
tells all others, which restore their clocks and end. Should rank 0 die, all others see that.

Two failures close no connection. A process that is stopped sends no heartbeats any more; they come from a thread, so
that a compilation or a checkpoint that takes long does not silence it. A rank whose main thread hangs still sends them,
and with them how far it is, which then does not change any more.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn, Protocol

from kareus.artifacts.ranges import within
from kareus.errors import EngineError, KareusError, refused_by_system
from kareus.launch.wire import keep_alive, receive, send

EXIT_CODE = 2
_KEY = "kareus-watch"
_GRACE_S = 1.0
"""Between the first bad news and the end: the loss of a peer is often heard of before its cause."""
_PATIENCE_S = 10.0
"""What a rank that has told its error waits to be ended, and the longest that its end takes."""
_POLL_S = 0.5
_LONGEST_WAIT_S = 7 * 86_400.0
_MEETING_S = 300.0
"""Longest wait at the start: of a rank for rank 0, and of rank 0 for every other rank."""
_LONGEST_PULSE_S = 5.0
"""Between two heartbeats; at least four of them make up the time after which a silent rank is given up."""
_FATAL, _DEATH, _CONSEQUENCE = range(3)
"""What is said first: an error that a user can act on, then a death, then what followed from either."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long ranks wait for one that gives no sign."""

    heartbeat_s: float = 60.0
    """Silence of a rank's process, such as one that is stopped, after which all end."""
    stall_s: float = 1800.0
    """Time without a new instruction, step or checkpoint of a rank whose process lives, after which all end."""

    def __post_init__(self) -> None:
        within(self, 1, _LONGEST_WAIT_S, "s", "heartbeat_s", "stall_s")


class Store(Protocol):
    """What ranks find each other by; torch's stores are."""

    def set(self, key: str, value: str) -> Any:
        """Publish."""

    def get(self, key: str) -> bytes:
        """Wait for what is published."""


class Watch:
    """This rank's part in it; made by `watched`."""

    def __init__(self, rank: int, name: str) -> None:
        """Watch as `rank`; messages begin with `name`."""
        self.rank = rank
        self.run = secrets.token_hex(8)
        """Identity of this start of all ranks. They share the first rank's."""
        self.steps = 0
        self.doing: str | None = None
        """What the main thread began last; None while nothing is expected of it."""
        self.remains = "there is no checkpoint yet."
        """What a next start can go on from, the end of a message."""
        self._name = name
        self._undo: list[Callable[[], None]] = []
        self._ending = threading.Lock()

    def progress(self, doing: str) -> None:
        """Note that the main thread has got further and what it begins to do now."""
        self.steps += 1
        self.doing = doing

    def keep(self) -> None:
        """Note that the training has a checkpoint of all ranks."""
        self.remains = "the last checkpoint is whole."

    def before_end(self, undo: Callable[[], None]) -> None:
        """Call `undo` before this process is ended by a thread; it has to bear being called at any other end too."""
        self._undo.append(undo)

    def end(self, said: str | None = None) -> NoReturn:
        """End this process now, whatever its main thread hangs in and whatever cannot be undone."""
        self._ending.acquire()  # whoever comes second waits for the end
        try:
            late = threading.Timer(_PATIENCE_S, os._exit, (EXIT_CODE,))  # a driver may never answer
            late.daemon = True
            late.start()
            if said is not None:
                self._say(said)
            for undo in self._undo:
                try:
                    undo()
                except (KareusError, OSError) as error:
                    self._say(f"{error} Run `kareus clocks reset`.")
        finally:
            os._exit(EXIT_CODE)

    def _say(self, said: str) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more, and clocks are still to be restored
            sys.stderr.write(f"{self._name}: {said}\n")
            sys.stderr.flush()


@contextlib.contextmanager
def watched(store: Store, rank: int, size: int, name: str, patience: Patience | None = None) -> Iterator[Watch]:
    """Watch over all ranks meanwhile; every rank enters this.

    Args:
        store: shared by all ranks.
        rank: of this process.
        size: number of ranks.
        name: of the program, the start of every message.
        patience: how long a rank may give no sign; by default as `Patience` says.

    Raises:
        EngineError: rank 0 cannot be reached.
    """
    patience = patience or Patience()
    watch = Watch(rank, name)
    if size == 1:
        yield watch
        return
    side = _Centre(watch, size, store, patience) if rank == 0 else _Member(watch, store, patience)
    try:
        yield watch
    except BaseException as error:
        side.fail(*_described(rank, error))
        raise
    watch.doing = None
    side.finish()


@dataclasses.dataclass(slots=True)
class _Signs:
    """Signs of life of one rank, as another heard them."""

    heard_s: float
    """When it was heard last."""
    moved_s: float
    """When it was heard to have got further."""
    has_joined: bool = False
    """Whether it was heard at all; until then `heard_s` is when the wait for it began."""
    steps: int = 0
    doing: str | None = None
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
            if now_s - self.heard_s <= _MEETING_S:
                return None
            return f"did not join within {_MEETING_S:,g} s; check that it was started and reaches rank 0; all end,"
        if now_s - self.heard_s > patience.heartbeat_s:
            return (
                f"gave no sign of life for {patience.heartbeat_s:,g} s (--heartbeat), as when its process is stopped; "
                "all others end,"
            )
        if self.doing is not None and now_s - self.moved_s > patience.stall_s:
            return (
                f"hangs: no progress for {patience.stall_s:,g} s (--stall) since it began with {self.doing}; all end,"
            )
        return None


def _pulse(
    patience: Patience, beat: Callable[[], None], check: Callable[[], bool], forgive: Callable[[], None]
) -> None:
    """Send heartbeats and check those of others until `check` returns False.

    Args:
        patience: decides how often.
        beat: sends.
        check: looks whether somebody is missed, and whether to go on.
        forgive: called where this process itself did not run for so long that others were not heard for that reason.
    """
    interval_s = min(_LONGEST_PULSE_S, patience.heartbeat_s / 4, patience.stall_s / 4)
    last_s = time.monotonic()
    while True:
        beat()
        time.sleep(interval_s)
        now_s = time.monotonic()
        if now_s - last_s > patience.heartbeat_s / 2:
            forgive()
        elif not check():
            return
        last_s = now_s


class _Centre:
    """Rank 0."""

    def __init__(self, watch: Watch, size: int, store: Store, patience: Patience | None = None) -> None:
        self._watch = watch
        self._patience = patience or Patience()
        now_s = time.monotonic()
        self._signs = {rank: _Signs(heard_s=now_s, moved_s=now_s) for rank in range(size)}
        self._news: list[tuple[int, int, str]] = []
        self._telling = threading.Lock()
        self._members: list[socket.socket] = []
        self._done = threading.Semaphore(0)
        self._size = size
        self._token = secrets.token_hex(16)
        server = socket.create_server(("", 0), backlog=size)
        host = os.environ.get("MASTER_ADDR", "localhost")
        store.set(_KEY, json.dumps([host, server.getsockname()[1], self._token]))
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        pulse = (self._patience, self._beat, self._check, self._forgive)
        threading.Thread(target=_pulse, args=pulse, daemon=True).start()

    def fail(self, urgency: int, said: str) -> None:
        """Tell, and wait for the end."""
        self._tell(urgency, 0, said)
        time.sleep(_PATIENCE_S)

    def finish(self) -> None:
        """Wait until all others are done."""
        self._signs[0].done = True
        for _ in range(self._size - 1):
            self._done.acquire()
        for member in self._members:
            send(member, {"done": True})

    def _accept(self, server: socket.socket) -> None:
        """Attend to whoever calls, each in a thread: one that says nothing must not keep others waiting."""
        server.settimeout(_POLL_S)
        with server:
            while len(self._members) < self._size - 1:
                with contextlib.suppress(TimeoutError):
                    member, _ = server.accept()
                    threading.Thread(target=self._meet, args=(member,), daemon=True).start()

    def _meet(self, member: socket.socket) -> None:
        keep_alive(member)
        member.settimeout(_PATIENCE_S)
        lines = member.makefile("rb")
        hello = receive(lines)
        if hello.get("token") != self._token:  # a stranger
            member.close()
            return
        member.settimeout(None)
        self._members.append(member)
        self._signs[hello["rank"]].hear(0, None)
        send(member, {"run": self._watch.run})
        self._attend(lines, hello["rank"])

    def _beat(self) -> None:
        self._signs[0].hear(self._watch.steps, self._watch.doing)
        for member in list(self._members):
            send(member, {"beat": True})

    def _check(self) -> bool:
        """Whether to go on: nobody is missed, and not all are done."""
        with self._telling:
            ending = bool(self._news)
        missed = {rank: said for rank, signs in self._signs.items() if (said := signs.missed(self._patience))}
        if missed and not ending:  # whoever hangs stopped before those that wait for it
            rank = min(missed, key=lambda each: self._signs[each].moved_s)
            self._tell(_DEATH, rank, f"rank {rank} {missed[rank]} {self._watch.remains}")
        return not (missed or ending or all(signs.done for signs in self._signs.values()))

    def _forgive(self) -> None:
        for signs in self._signs.values():
            signs.heard_s = signs.moved_s = time.monotonic()

    def _attend(self, lines: IO[bytes], rank: int) -> None:
        while "beat" in (news := receive(lines)):
            self._signs[rank].hear(news["beat"], news.get("doing"))
        if "done" in news:
            self._signs[rank].done = True
            self._done.release()
        elif "said" in news:
            self._tell(news["urgency"], rank, news["said"])
        else:
            self._tell(_DEATH, rank, f"rank {rank} died; all others end, {self._watch.remains}")

    def _tell(self, urgency: int, rank: int, said: str) -> None:
        with self._telling:  # exactly one thread is the first
            self._news.append((urgency, rank, said))
            first = len(self._news) == 1
        if first:
            threading.Timer(_GRACE_S, self._end).start()

    def _end(self) -> None:
        for member in self._members:
            send(member, {"end": True})
        self._watch.end(min(self._news)[-1])


class _Member:
    """Any other rank."""

    def __init__(self, watch: Watch, store: Store, patience: Patience | None = None) -> None:
        self._watch = watch
        self._patience = patience or Patience()
        self._sending = threading.Lock()
        self._finished = False
        self._centre, lines, watch.run = _meet_centre(watch.rank, store)
        now_s = time.monotonic()
        self._signs = _Signs(heard_s=now_s, moved_s=now_s, has_joined=True)
        self._reader = threading.Thread(target=self._attend, args=(lines,), daemon=True)
        self._reader.start()
        pulse = (self._patience, self._beat, self._check, self._forgive)
        threading.Thread(target=_pulse, args=pulse, daemon=True).start()

    def fail(self, urgency: int, said: str) -> None:
        """Tell rank 0, and wait for the end."""
        self._send({"urgency": urgency, "said": said})
        self._reader.join(_PATIENCE_S)

    def finish(self) -> None:
        """Say that all is well and wait until it is everywhere."""
        self._send({"done": True})
        self._reader.join()
        self._finished = True

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            send(self._centre, message)

    def _beat(self) -> None:
        self._send({"beat": self._watch.steps, "doing": self._watch.doing})

    def _check(self) -> bool:
        missed = None if self._finished else self._signs.missed(self._patience)
        if missed is not None:
            self._watch.end(f"rank 0 {missed} {self._watch.remains}" if self._watch.rank == 1 else None)
        return not self._finished

    def _forgive(self) -> None:
        self._signs.heard_s = time.monotonic()

    def _attend(self, lines: IO[bytes]) -> None:
        while "beat" in (news := receive(lines)):
            self._signs.hear(0, None)
        if "end" in news:
            self._watch.end()
        if "done" not in news:
            said = f"rank 0 died; all others end, {self._watch.remains}"
            self._watch.end(said if self._watch.rank == 1 else None)


def _meet_centre(rank: int, store: Store) -> tuple[socket.socket, IO[bytes], str]:
    """Connect to rank 0; returns the connection, what comes over it, and the identity of this start.

    Where torchrun starts ranks again, the store still has the address of the rank 0 that died, until the new one
    replaces it. So an address counts once a rank 0 answers there that knows the token.

    Raises:
        EngineError: nobody answers.
    """
    deadline_s = time.monotonic() + _MEETING_S
    while True:
        host, port, token = json.loads(store.get(_KEY))
        with contextlib.suppress(OSError):
            centre = socket.create_connection((host, port), timeout=_PATIENCE_S)
            keep_alive(centre)
            lines = centre.makefile("rb")
            send(centre, {"token": token, "rank": rank})
            welcome = receive(lines)
            if "run" in welcome:
                centre.settimeout(None)
                return centre, lines, welcome["run"]
            lines.close()
            centre.close()
        if time.monotonic() > deadline_s:
            raise EngineError(
                f"rank {rank}: rank 0 does not answer at {host}:{port}; check that it runs, and that machines reach "
                "each other at MASTER_ADDR."
            )
        time.sleep(_POLL_S / 10)


def _described(rank: int, error: BaseException) -> tuple[int, str]:
    """How urgent an error is, and what is said of it; one that a user cannot act on with its traceback."""
    if isinstance(error, KareusError):
        return _FATAL, str(error)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # which follows from a peer's end
        return _FATAL, f"rank {rank}: {refused_by_system(error)}"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return _FATAL, "interrupted; start it again to go on from the last checkpoint, if there is one."
    return _CONSEQUENCE, f"rank {rank}: {''.join(traceback.format_exception(error)).rstrip()}"
