"""Rank 0's side of the watching of ranks: it receives failures and heartbeats of all others, and ends all."""

import ipaddress
import os
import secrets
import socket
import threading
import time

from kareus.artifacts.records import canonical_json
from kareus.launch.heartbeats import LifeSigns, Patience, exchange_heartbeats
from kareus.launch.monitor import RankMonitor
from kareus.launch.wire import (
    ADDRESS_KEY,
    REPLY_TIMEOUT_S,
    Address,
    AddressStore,
    RankMessage,
    Urgency,
    keep_alive,
    receive,
    receive_greeting,
    send,
)

_GRACE_S = 1.0
"""Time between the first failure and the end: the loss of a peer is often received before its cause."""
_ACCEPT_S = 0.5
_PAUSE_S = 0.05
_MOST_GREETING = 256
"""Connections that may be greeting at a time; further ones wait, so that strangers take no memory without bound."""


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
        self._members: dict[int, socket.socket] = {}
        """Connection of each rank that has joined."""
        self._joining = threading.Lock()
        self._greeting = threading.Semaphore(_MOST_GREETING)
        self._done = threading.Semaphore(0)
        self._size = size
        self._token = secrets.token_hex(16)
        host, server = _open_server(size)
        store.set(ADDRESS_KEY, canonical_json(Address(host=host, port=server.getsockname()[1], token=self._token)))
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
        for member in self._members.values():
            send(member, RankMessage(done=True))

    def _accept(self, server: socket.socket) -> None:
        """Accept each connection in a separate thread, so that one that sends nothing delays no other."""
        server.settimeout(_ACCEPT_S)
        with server:
            while len(self._members) < self._size - 1:
                try:
                    connection, _ = server.accept()
                except OSError:  # nobody came, or this process has no descriptor left
                    time.sleep(_PAUSE_S)
                    continue
                self._greeting.acquire()
                threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        keep_alive(connection)
        rank = self._greeted(receive_greeting(connection))
        if rank is not None:
            connection.settimeout(None)
            send(connection, RankMessage(run=self._monitor.run))
            self._members[rank] = connection  # only now: a heartbeat before the welcome would be taken for no answer
        self._greeting.release()
        if rank is None:
            connection.close()
        else:
            self._listen(connection, rank)

    def _greeted(self, greeting: RankMessage) -> int | None:
        """Return the rank that greets; None for a stranger, and for a rank that there is not or is already."""
        rank, token = greeting.rank, (greeting.token or "").encode()
        if rank is None or not secrets.compare_digest(token, self._token.encode()):
            return None
        with self._joining:
            if not 0 < rank < self._size or self._signs[rank].has_joined:
                return None
            self._signs[rank].hear(0, None)
        return rank

    def _beat(self) -> None:
        self._signs[0].hear(self._monitor.steps, self._monitor.doing)
        for member in list(self._members.values()):
            send(member, RankMessage(beat=self._monitor.steps))

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

    def _listen(self, connection: socket.socket, rank: int) -> None:
        """Receive the messages of `rank` until it is done, fails or dies."""
        with connection.makefile("rb") as lines:
            while (message := receive(lines)).beat is not None:
                self._signs[rank].hear(message.beat, message.doing)
        if message.done:
            self._signs[rank].done = True
            self._done.release()
        elif message.failure is not None:
            self._note_failure(message.urgency, rank, message.failure)
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
        for member in list(self._members.values()):
            send(member, RankMessage(end=True))
        self._monitor.end(cause)


def _open_server(size: int) -> tuple[str, socket.socket]:
    """Listen for `size` ranks on the address that they are told, and no other; return it, too.

    Where all ranks are on this machine, that is the loopback. A machine may know the name that others call it by as its
    loopback (Debian's 127.0.1.1), or not have the address (behind a service or NAT). There all addresses have to do.
    """
    is_alone = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    host = "localhost" if is_alone else os.environ.get("MASTER_ADDR", "localhost")
    try:
        family, _, _, _, (address, *_) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        is_loopback = ipaddress.ip_address(str(address).partition("%")[0]).is_loopback
        if not is_loopback or host in ("localhost", address):
            return host, socket.create_server((str(address), 0), family=family, backlog=size)
    except OSError:
        pass
    return host, socket.create_server(("", 0), backlog=size)
