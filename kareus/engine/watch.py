"""All ranks end when one fails, and rank 0 says why, once.

A rank that waits in a collective for one that has gone may wait for ever. So every rank keeps a connection to rank 0
that says nothing while all is well; the kernel closes it when a rank dies, however it dies, or its whole machine is
gone. Rank 0 then says what happened and tells all others, which restore their clocks and end. Should rank 0 die, all
others see that.
"""

import contextlib
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

from kareus.engine.wire import keep_alive, receive, send
from kareus.errors import KareusError, refused_by_system

EXIT_CODE = 2
_KEY = "kareus-watch"
_GRACE_S = 1.0
"""Between the first bad news and the end: the loss of a peer is often heard of before its cause."""
_PATIENCE_S = 10.0
"""What a rank that has told its error waits to be ended, and the longest that its end takes."""
_POLL_S = 0.5
_FATAL, _DEATH, _CONSEQUENCE = range(3)
"""What is said first: an error that a user can act on, then a death, then what followed from either."""


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
        self._name = name
        self._undo: list[Callable[[], None]] = []
        self._ending = threading.Lock()

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
def watched(store: Store, rank: int, size: int, name: str) -> Iterator[Watch]:
    """Watch over all ranks meanwhile; every rank enters this.

    Args:
        store: shared by all ranks.
        rank: of this process.
        size: number of ranks.
        name: of the program, the start of every message.
    """
    watch = Watch(rank, name)
    if size == 1:
        yield watch
        return
    side = _Centre(watch, size, store) if rank == 0 else _Member(watch, store)
    try:
        yield watch
    except BaseException as error:
        side.fail(*_described(rank, error))
        raise
    side.finish()


class _Centre:
    """Rank 0."""

    def __init__(self, watch: Watch, size: int, store: Store) -> None:
        self._watch = watch
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

    def fail(self, urgency: int, said: str) -> None:
        """Tell, and wait for the end."""
        self._tell(urgency, 0, said)
        time.sleep(_PATIENCE_S)

    def finish(self) -> None:
        """Wait until all others are done."""
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
        self._attend(lines, hello["rank"])

    def _attend(self, lines: IO[bytes], rank: int) -> None:
        news = receive(lines)
        if "done" in news:
            self._done.release()
        elif "said" in news:
            self._tell(news["urgency"], rank, news["said"])
        else:
            self._tell(_DEATH, rank, f"rank {rank} died; all others end, the last checkpoint is whole.")

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

    def __init__(self, watch: Watch, store: Store) -> None:
        self._watch = watch
        host, port, token = json.loads(store.get(_KEY))
        self._centre = socket.create_connection((host, port))
        keep_alive(self._centre)
        send(self._centre, {"token": token, "rank": watch.rank})
        self._reader = threading.Thread(target=self._attend, args=(self._centre.makefile("rb"),), daemon=True)
        self._reader.start()

    def fail(self, urgency: int, said: str) -> None:
        """Tell rank 0, and wait for the end."""
        send(self._centre, {"urgency": urgency, "said": said})
        self._reader.join(_PATIENCE_S)

    def finish(self) -> None:
        """Say that all is well and wait until it is everywhere."""
        send(self._centre, {"done": True})
        self._reader.join()

    def _attend(self, lines: IO[bytes]) -> None:
        news = receive(lines)
        if "end" in news:
            self._watch.end()
        if "done" not in news:
            said = "rank 0 died; all others end, the last checkpoint is whole."
            self._watch.end(said if self._watch.rank == 1 else None)


def _described(rank: int, error: BaseException) -> tuple[int, str]:
    """How urgent an error is, and what is said of it; one that a user cannot act on with its traceback."""
    if isinstance(error, KareusError):
        return _FATAL, str(error)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # which follows from a peer's end
        return _FATAL, f"rank {rank}: {refused_by_system(error)}"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return _FATAL, "interrupted; start it again to go on from the last checkpoint."
    return _CONSEQUENCE, f"rank {rank}: {''.join(traceback.format_exception(error)).rstrip()}"
