"""Lines of JSON between the process that measures and its workers: nothing that crosses it can run."""

import json
import os
import select
import socket
import threading
import time
from typing import IO, Any

from kareus.artifacts.records import parse_json, to_plain
from kareus.errors import ConfigError

_MOST_BYTES = 2**28
"""Length of a line: programs of whole instructions are a few megabytes."""


def message_line(value: Any) -> bytes:
    """Return a record or plain data as a line."""
    return json.dumps(to_plain(value), allow_nan=False).encode() + b"\n"


def read_message(lines: IO[bytes]) -> Any:
    """Wait for the next line and return what it says; no more than `_MOST_BYTES` are ever kept.

    Raises:
        EOFError: the other end has gone.
        ConfigError: it sent a longer line, or one that is not JSON.
    """
    line = lines.readline(_MOST_BYTES)
    if not line or (len(line) < _MOST_BYTES and not line.endswith(b"\n")):
        raise EOFError
    if not line.endswith(b"\n"):
        raise ConfigError("a line without end")
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError:
        raise ConfigError("not text") from None


class Channel:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        """Speak over `connection`."""
        self._connection = connection
        self._lines = connection.makefile("rb")

    def fileno(self) -> int:
        """Descriptor, for selectors."""
        return self._connection.fileno()

    def send(self, value: Any) -> None:
        """Send a record or plain data."""
        self._connection.sendall(message_line(value))

    def receive(self) -> Any:
        """Wait for what the other end sends.

        Raises:
            EOFError: it has gone.
            ConfigError: it sent what is not a line of JSON.
        """
        return read_message(self._lines)

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._connection.close()


def exit_after_hangup(channel: Channel, grace_s: float) -> None:
    """End this process, whatever it hangs in, `grace_s` after the other end has gone; returns at once."""

    def wait() -> None:
        poll = select.poll()
        poll.register(channel, select.POLLRDHUP)
        poll.poll()
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
