"""Messages between ranks, a line of JSON each, over connections that notice when the other machine vanishes."""

import contextlib
import json
import socket
from typing import IO, Any

_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""Seconds of silence before the first probe and between probes, probes, and milliseconds for an answer to any byte
(tcp(7)): a machine that loses power or its network closes nothing, and is missed after 20 s. Not every platform has
all of them."""


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel close `connection` if the other machine does not answer for 20 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def receive(lines: IO[bytes]) -> dict[str, Any]:
    """The next message; an empty one if the other side has gone or makes no sense."""
    try:
        message = json.loads(lines.readline() or b"{}")
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message, to nobody if the other side has gone."""
    with contextlib.suppress(OSError):  # whoever is not there any more is known to be dead
        connection.sendall(json.dumps(message).encode() + b"\n")
