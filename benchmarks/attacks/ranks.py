"""What reaches the port on which rank 0 waits for the others: strangers' bytes, odd greetings, odd messages of ranks.

Rank 0 listens where its ranks reach it and nowhere else, keeps no bytes without bound, turns strangers away, ends for a
member that breaks the protocol with one line, and prints no traceback and no control character.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from attacks.commands import CONTROL
from attacks.rows import Row, Try, row
from attacks.target import Target

RANK_0 = """
import sys, time
from pathlib import Path
from kareus.launch.watch import watched

class Store:
    def set(self, key, value):
        Path(sys.argv[1]).with_suffix(".new").write_text(value)
        Path(sys.argv[1]).with_suffix(".new").rename(sys.argv[1])

with watched(Store(), 0, 2, "attacked"):
    time.sleep(60)
"""
MEBIBYTE = 2**20
MOST_GROWTH = 32 * MEBIBYTE
STRANGERS: dict[str, bytes] = {
    "100 MB without a line end": b"x" * (100 * MEBIBYTE),
    "100 MB of braces": b'{"a":' * (20 * MEBIBYTE),
    "deep JSON": b"[" * 200_000 + b"\n",
    "no text": b"\xff\xfe\n",
    "no object": b"5\n",
    "a wrong token": b'{"token": "guessed", "rank": 1}\n',
    "a token that is none": b'{"token": {}, "rank": 1}\n',
}
"""What who does not know the token sends."""
GREETINGS: dict[str, dict[str, Any]] = {
    "no rank": {},
    "a rank that there is not": {"rank": 99},
    "rank 0": {"rank": 0},
    "a list for a rank": {"rank": []},
    "a text for a rank": {"rank": "1"},
}
"""What who knows the token says first, besides the token; turned away."""
MESSAGES: dict[str, bytes] = {
    "a failure without urgency": b'{"failure": "lost"}\n',
    "a failure of an urgency that there is not": b'{"failure": "lost", "urgency": "much"}\n',
    "control characters in a failure": b'{"failure": "\\u001b[2Jlost", "urgency": 0}\n',
    "a heartbeat that is none": b'{"beat": []}\n',
    "100 MB in a line": b"x" * (100 * MEBIBYTE),
    "deep JSON": b"[" * 200_000 + b"\n",
}
"""What a rank says then; rank 0 ends."""


def attacks(target: Target) -> Iterator[Row]:
    """Say all of it, each to another rank 0."""
    tries = [Try(name, partial(_attacked, target, sent)) for name, sent in STRANGERS.items()]
    tries += [Try(f"greeting: {name}", partial(_attacked, target, b"", said)) for name, said in GREETINGS.items()]
    tries += [
        Try(f"then {name}", partial(_attacked, target, sent, {"rank": 1}, ends=True)) for name, sent in MESSAGES.items()
    ]
    tries.append(Try("the address", partial(_listening, target)))
    yield row("bytes and messages to rank 0's port", tries, target.jobs)


def _attacked(target: Target, sent: bytes, greeting: dict[str, Any] | None = None, *, ends: bool = False) -> str:
    with _rank_0(target) as (process, (host, port, token)), socket.create_connection((host, port), 30) as connection:
        before = psutil.Process(process.pid).memory_info().rss
        with contextlib.suppress(OSError):
            if greeting is not None:
                connection.sendall(json.dumps({"token": token, **greeting}).encode() + b"\n")
            if ends:
                connection.recv(MEBIBYTE)  # the welcome
            for start in range(0, len(sent), MEBIBYTE):
                connection.sendall(sent[start : start + MEBIBYTE])
        growth = _growth(process, before)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30 * ends)
        failure = "" if (process.poll() is not None) is ends else "goes on for 30 s" if ends else "ended"
        process.kill()
        said = process.communicate()[1]
    if growth > MOST_GROWTH:
        return f"{growth / MEBIBYTE:.0f} MiB more memory"
    if "Traceback" in said:
        return f"traceback: {said.strip().splitlines()[-1][:100]}"
    return "control character on the terminal" if CONTROL.search(said) else failure


def _growth(process: "subprocess.Popen[str]", before: int) -> int:
    """Largest growth of its memory within a second."""
    most = 0
    for _ in range(10):
        time.sleep(0.1)
        with contextlib.suppress(psutil.Error):
            most = max(most, psutil.Process(process.pid).memory_info().rss - before)
    return most


def _listening(target: Target) -> str:
    with _rank_0(target) as (process, _):
        open_to = {each.laddr.ip for each in psutil.Process(process.pid).net_connections() if each.status == "LISTEN"}
        process.kill()
    return "" if open_to <= {"127.0.0.1", "::1"} else f"all ranks are here, and it listens on {', '.join(open_to)}"


@contextlib.contextmanager
def _rank_0(target: Target) -> Iterator[tuple["subprocess.Popen[str]", tuple[str, int, str]]]:
    """Start rank 0 of two; with its host, port and token."""
    place: Path = target.folder("rank") / "address"
    environment = target.environment(place.parent) | {"MASTER_ADDR": "localhost"}
    line = [sys.executable, "-c", RANK_0, str(place)]
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True, cwd=place.parent) as process:
        try:
            while not place.exists() and process.poll() is None:
                time.sleep(0.05)
            address = json.loads(place.read_text())
            if isinstance(address, dict):  # a list in versions before
                address = [address[key] for key in ("host", "port", "token")]
            yield process, tuple(address)
        finally:
            process.kill()
