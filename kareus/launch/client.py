"""The other ranks' side of the watching of ranks: a connection to rank 0."""

import contextlib
import socket
import threading
import time
from typing import IO

from kareus.artifacts.records import from_plain, parse_json
from kareus.errors import ConfigError, EngineError
from kareus.launch.heartbeats import JOIN_TIMEOUT_S, LifeSigns, Patience, exchange_heartbeats
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
    send,
    shortened,
)

_RETRY_S = 0.05


class CoordinatorClient:
    """Connection of a rank other than 0 to rank 0."""

    def __init__(self, monitor: RankMonitor, store: AddressStore, patience: Patience | None = None) -> None:
        """Connect to the rank 0 whose address is in `store`, and take over its identity of the start.

        Raises:
            EngineError: rank 0 does not answer.
        """
        self._monitor = monitor
        self._patience = patience or Patience()
        self._sending = threading.Lock()
        self._finished = False
        self._coordinator, lines, monitor.run = _connect(monitor.rank, store)
        now_s = time.monotonic()
        self._signs = LifeSigns(heard_s=now_s, moved_s=now_s, has_joined=True)
        self._reader = threading.Thread(target=self._listen, args=(lines,), daemon=True)
        self._reader.start()
        arguments = (self._patience, self._beat, self._check, self._reset)
        threading.Thread(target=exchange_heartbeats, args=arguments, daemon=True).start()

    def fail(self, urgency: Urgency, message: str) -> None:
        """Send a failure to rank 0 and wait for the end."""
        self._send(RankMessage(urgency=urgency, failure=shortened(message)))
        self._reader.join(REPLY_TIMEOUT_S)

    def finish(self) -> None:
        """Report to rank 0 that this rank is done, and wait for all others."""
        self._send(RankMessage(done=True))
        self._reader.join()
        self._finished = True

    def _send(self, message: RankMessage) -> None:
        with self._sending:
            send(self._coordinator, message)

    def _beat(self) -> None:
        self._send(RankMessage(beat=self._monitor.steps, doing=self._monitor.doing))

    def _check(self) -> bool:
        missed = None if self._finished else self._signs.missed(self._patience)
        if missed is not None:
            self._monitor.end(f"rank 0 {missed} {self._monitor.remains}" if self._monitor.rank == 1 else None)
        return not self._finished

    def _reset(self) -> None:
        self._signs.heard_s = time.monotonic()

    def _listen(self, lines: IO[bytes]) -> None:
        """Receive the messages of rank 0 until all are done, or end if it asks for it or dies."""
        while (message := receive(lines)).beat is not None:
            self._signs.hear(0, None)
        if message.end:
            self._monitor.end()
        if not message.done:
            reason = f"rank 0 died; all others end, {self._monitor.remains}"
            self._monitor.end(reason if self._monitor.rank == 1 else None)


def _connect(rank: int, store: AddressStore) -> tuple[socket.socket, IO[bytes], str]:
    """Connect to rank 0; return the connection, its lines, and the identity of this start.

    Where torchrun starts ranks again, the store still has the address of the rank 0 that died, until the new one
    replaces it. So an address counts once a rank 0 answers there that knows the token.

    Raises:
        EngineError: rank 0 does not answer.
    """
    deadline_s, place = time.monotonic() + JOIN_TIMEOUT_S, "an address that is none"
    while True:
        published = store.get(ADDRESS_KEY)
        with contextlib.suppress(OSError, OverflowError, ConfigError):  # nobody there, or no address
            address = from_plain(Address, parse_json(published.decode(errors="replace")))
            place = f"{address.host}:{address.port}"
            coordinator = socket.create_connection((address.host, address.port), timeout=REPLY_TIMEOUT_S)
            keep_alive(coordinator)
            lines = coordinator.makefile("rb")
            send(coordinator, RankMessage(token=address.token, rank=rank))
            welcome = receive(lines)
            if welcome.run is not None:
                coordinator.settimeout(None)
                return coordinator, lines, welcome.run
            lines.close()
            coordinator.close()
        if time.monotonic() > deadline_s:
            raise EngineError(
                f"rank {rank}: rank 0 does not answer at {place}; check that it runs, and that machines reach each "
                "other at MASTER_ADDR."
            )
        time.sleep(_RETRY_S)
