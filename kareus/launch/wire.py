"""Messages between ranks, a line of JSON each, over connections that notice when the other machine vanishes."""

import contextlib
import json
import socket
from enum import IntEnum
from typing import IO, Any, Protocol

ADDRESS_KEY = "kareus-watch"
"""Key of rank 0's address in the ranks' store."""
REPLY_TIMEOUT_S = 10.0
"""Longest wait for an answer of another rank."""
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


class AddressStore(Protocol):
    """Key-value store in which ranks find each other; torch's stores are of this type."""

    def set(self, key: str, value: str) -> Any:
        """Publish a value."""

    def get(self, key: str) -> bytes:
        """Wait for a value and return it."""


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel close `connection` if the other machine does not answer for 20 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive(lines: IO[bytes]) -> dict[str, Any]:
    """Return the next message; an empty one if the other side has gone or sent no JSON object."""
    try:
        message = json.loads(lines.readline() or b"{}")
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message; do nothing if the other side has gone."""
    with contextlib.suppress(OSError):  # the reader of this connection notices that
        connection.sendall(json.dumps(message).encode() + b"\n")
