"""Lines of JSON between the process that measures and its workers: nothing that crosses it can run."""

import os
import select
import socket
import threading
import time
from typing import Any

from kareus.artifacts.messages import message_line, read_message

_MOST_BYTES = 2**28
"""Length of a line: programs of whole instructions are a few megabytes."""


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
        return read_message(self._lines, _MOST_BYTES)

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
