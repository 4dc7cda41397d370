"""Messages between ranks, a line of JSON each, over connections that notice when the other machine vanishes.

Anybody who reaches rank 0's port can send anything. So lines are bounded, every message is read as a `RankMessage`, and
what is none counts as the end of the connection.
"""

import contextlib
import socket
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, Any, Protocol

from kareus.artifacts.messages import message_line, parse_message, read_message
from kareus.artifacts.records import from_plain
from kareus.errors import ConfigError

ADDRESS_KEY = "kareus-watch"
"""Key of rank 0's address in the ranks' store."""
REPLY_TIMEOUT_S = 10.0
"""Longest wait for an answer of another rank."""
MOST_BYTES = 2**17
"""Length of a line; `MOST_CHARACTERS`, each of which JSON may write as 12 bytes, fit in."""
MOST_CHARACTERS = 8192
"""Characters of a failure that are sent; the middle of a longer one is left out."""
_MOST_GREETING_BYTES = 1024
"""Length of the first line of a connection, which has a token and a rank."""
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""Seconds of silence before the first probe and between probes, probes, and milliseconds for an answer to any byte
(tcp(7)): a machine that loses power or its network closes nothing, and is missed after 20 s. Not every platform has
all of them."""


class Urgency(IntEnum):
    """Order in which failures are reported."""

    FATAL = 0
    """An error that a user can act on."""
    DEATH = 1
    """The loss of a rank's process."""
    CONSEQUENCE = 2
    """An error that followed from one of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where rank 0 listens."""

    host: str
    port: int
    token: str
    """What a rank of this start has to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage:
    """What one rank says to another; an empty one says that it has gone."""

    token: str | None = None
    """First of all, with `rank`: a rank's greeting."""
    rank: int | None = None
    run: str | None = None
    """Rank 0's answer: the identity of this start of all ranks."""
    beat: int | None = None
    """A heartbeat: how many steps the main thread has begun."""
    doing: str | None = None
    failure: str | None = None
    urgency: Urgency = Urgency.CONSEQUENCE
    """Of `failure`."""
    done: bool = False
    """Whether the sender needs no other rank any more."""
    end: bool = False
    """Whether the receiver has to end."""


class AddressStore(Protocol):
    """Key-value store in which ranks find each other; torch's stores are of this type."""

    def set(self, key: str, value: str) -> Any:
        """Publish a value."""

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel close `connection` if the other machine does not answer for 20 s."""
    with contextlib.suppress(OSError):  # it is closed already; who reads it notices
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive(lines: IO[bytes]) -> RankMessage:
    """Return the next message; an empty one if the other side has gone or sent anything else."""
    try:
        return from_plain(RankMessage, read_message(lines, MOST_BYTES))
    except (OSError, EOFError, ValueError, ConfigError):  # a ValueError: the connection was closed here
        return RankMessage()


def receive_greeting(connection: socket.socket) -> RankMessage:
    """Return the first message of a connection, as `receive`; no byte, however slow they come, prolongs the wait."""
    deadline_s, line = time.monotonic() + REPLY_TIMEOUT_S, b""
    try:
        while not line.endswith(b"\n") and len(line) < _MOST_GREETING_BYTES:
            connection.settimeout(max(deadline_s - time.monotonic(), 1e-3))
            received = connection.recv(_MOST_GREETING_BYTES - len(line))
            if not received or time.monotonic() > deadline_s:
                return RankMessage()
            line += received
        return from_plain(RankMessage, parse_message(line))
    except (OSError, ConfigError):
        return RankMessage()


def send(connection: socket.socket, message: RankMessage) -> None:
    """Send a message; do nothing if the other side has gone."""
    with contextlib.suppress(OSError):  # the reader of this connection notices that
        connection.sendall(message_line(message))


def shortened(text: str) -> str:
    """Return a failure without its middle, if it is longer than may be sent."""
    half = MOST_CHARACTERS // 2 - len("\n...\n")
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]}\n...\n{text[-half:]}"
