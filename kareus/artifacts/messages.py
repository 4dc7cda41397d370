"""Messages between processes: a line of JSON each, of bounded length, parsed as strictly as a file."""

import json
from typing import IO, Any

from kareus.artifacts.records import parse_json, to_plain
from kareus.errors import ConfigError


def message_line(value: Any) -> bytes:
    """Return a record or plain data as a line."""
    return json.dumps(to_plain(value), allow_nan=False).encode() + b"\n"


def parse_message(line: bytes) -> Any:
    """Return what a line says.

    Raises:
        ConfigError: the line has no end, or is not text or not JSON.
    """
    if not line.endswith(b"\n"):
        raise ConfigError("a line without end")
    try:
        return parse_json(line.decode())
    except UnicodeDecodeError:
        raise ConfigError("not text") from None


def read_message(lines: IO[bytes], most_bytes: int) -> Any:
    """Wait for the next line and return what it says; no more than `most_bytes` are ever kept.

    Raises:
        EOFError: the other end has gone.
        ConfigError: it sent a longer line, or one that is not JSON.
    """
    line = lines.readline(most_bytes)
    if not line or (len(line) < most_bytes and not line.endswith(b"\n")):
        raise EOFError
    return parse_message(line)
