"""Rank 0's side of the watching of ranks: it receives failures and heartbeats of all others, and ends all."""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from typing import IO

from kareus.launch.heartbeats import LifeSigns, Patience, exchange_heartbeats
from kareus.launch.monitor import RankMonitor
from kareus.launch.wire import ADDRESS_KEY, REPLY_TIMEOUT_S, AddressStore, Urgency, keep_alive, receive, send

_GRACE_S = 1.0
"""Time between the first failure and the end: the loss of a peer is often received before its cause."""
_ACCEPT_S = 0.5


class Coordinator:
    """Connections of rank 0 to all other ranks."""

    def __init__(self, monitor: RankMonitor, size: int, store: AddressStore, patience: Patience | None = None) -> None:
        """Listen, publish the address in `store`, and watch `size` ranks."""
        self._monitor = monitor
        self._patience = patience or Patience()
        now_s = time.monotonic()
        self._signs = {rank: LifeSigns(heard_s=now_s, moved_s=now_s) for rank in range(size)}
        self._failures: list[tuple[int, int, str]] = []
        """Urgency, rank and message of each failure."""
        self._failing = threading.Lock()
        self._members: list[socket.socket] = []
        self._done = threading.Semaphore(0)
        self._size = size
        self._token = secrets.token_hex(16)
        server = socket.create_server(("", 0), backlog=size)
        host = os.environ.get("MASTER_ADDR", "localhost")
        store.set(ADDRESS_KEY, json.dumps([host, server.getsockname()[1], self._token]))
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()
        heartbeats = (self._patience, self._beat, self._check, self._reset)
        threading.Thread(target=exchange_heartbeats, args=heartbeats, daemon=True).start()

    def fail(self, urgency: Urgency, message: str) -> None:
        """Note a failure of rank 0 and wait for the end."""
        self._note_failure(urgency, 0, message)
        time.sleep(REPLY_TIMEOUT_S)

    def finish(self) -> None:
        """Wait until all others are done."""
        self._signs[0].done = True
        for _ in range(self._size - 1):
            self._done.acquire()
        for member in self._members:
            send(member, {"done": True})

    def _accept(self, server: socket.socket) -> None:
        """Accept each connection in a separate thread, so that one that sends nothing delays no other."""
        server.settimeout(_ACCEPT_S)
        with server:
            while len(self._members) < self._size - 1:
                with contextlib.suppress(TimeoutError):
                    member, _ = server.accept()
                    threading.Thread(target=self._welcome, args=(member,), daemon=True).start()

    def _welcome(self, member: socket.socket) -> None:
        keep_alive(member)
        member.settimeout(REPLY_TIMEOUT_S)
        lines = member.makefile("rb")
        hello = receive(lines)
        if hello.get("token") != self._token:  # not a rank of this start
            member.close()
            return
        member.settimeout(None)
        self._signs[hello["rank"]].hear(0, None)
        send(member, {"run": self._monitor.run})
        self._members.append(member)  # only now: a heartbeat before the welcome would be taken for no answer
        self._listen(lines, hello["rank"])

    def _beat(self) -> None:
        self._signs[0].hear(self._monitor.steps, self._monitor.doing)
        for member in list(self._members):
            send(member, {"beat": True})

    def _check(self) -> bool:
        """Return whether to go on: no rank is missed, and not all are done."""
        with self._failing:
            ending = bool(self._failures)
        missed = {rank: reason for rank, signs in self._signs.items() if (reason := signs.missed(self._patience))}
        if missed and not ending:  # the rank that hangs stopped before those that wait for it
            rank = min(missed, key=lambda each: self._signs[each].moved_s)
            self._note_failure(Urgency.DEATH, rank, f"rank {rank} {missed[rank]} {self._monitor.remains}")
        return not (missed or ending or all(signs.done for signs in self._signs.values()))

    def _reset(self) -> None:
        for signs in self._signs.values():
            signs.heard_s = signs.moved_s = time.monotonic()

    def _listen(self, lines: IO[bytes], rank: int) -> None:
        """Receive the messages of `rank` until it is done, fails or dies."""
        while "beat" in (message := receive(lines)):
            self._signs[rank].hear(message["beat"], message.get("doing"))
        if "done" in message:
            self._signs[rank].done = True
            self._done.release()
        elif "failure" in message:
            self._note_failure(message["urgency"], rank, message["failure"])
        else:
            self._note_failure(Urgency.DEATH, rank, f"rank {rank} died; all others end, {self._monitor.remains}")

    def _note_failure(self, urgency: int, rank: int, message: str) -> None:
        with self._failing:  # exactly one thread is the first
            self._failures.append((urgency, rank, message))
            first = len(self._failures) == 1
        if first:
            threading.Timer(_GRACE_S, self._end).start()

    def _end(self) -> None:
        cause = min(self._failures)[-1]  # before members are told: each that ends counts as one more death
        for member in self._members:
            send(member, {"end": True})
        self._monitor.end(cause)
