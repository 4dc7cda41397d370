"""Little that becomes much: compressed CSVs, YAML whose aliases nest, and silent connections to the fork server.

A refusal takes seconds and a bounded amount of memory, and says why.
"""

import gzip
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from attacks.commands import refusal_missing
from attacks.pool import fuzzed
from attacks.rows import Row, Try, row
from attacks.target import Target

LIMITED = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30,) * 2); "
    "from kareus.cli import main; sys.exit(main(sys.argv[1:]))"
)
"""A command that may have 4 GiB of addresses."""
PART, PARTS = 2**24, 2**9
"""Bytes of a compressed part, and how often it stands in the file: 8 GiB in all."""
UNPACKED = {
    "one cell of 8 GiB": b"x",
    "four thousand million empty lines": b"\n",
    "two thousand million short rows": b"a,1\n",
}
ALIASES = {
    "lists": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n",
    "mappings": "a0: &a0 {a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x, i: x}\n",
}
LEVELS = 9
LIMIT_S = 60.0
NOBODY = 65534
SERVER = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
from kareus.cli import fork_server
server = fork_server.start()
import os
print(os.environ[fork_server.FORK_SERVER_VARIABLE], flush=True)
time.sleep(25)
print(server.poll(), flush=True)
"""
CONNECTIONS = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
kept = []
for _ in range(1500):
    kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    kept[-1].settimeout(1)
    try:
        kept[-1].connect("\\0" + sys.argv[1])
    except OSError:
        pass
time.sleep(3)
"""
"""Opens what it can, says nothing."""


def attacks(target: Target) -> Iterator[Row]:
    """Give each to a command."""
    yield fuzzed(target, "damaged .csv.gz (`validate`)", "packed", 200)
    tries = [Try(name, partial(_unpacked, target, part)) for name, part in UNPACKED.items()]
    tries += [Try(f"nested aliases of {name}", partial(_aliases, target, first)) for name, first in ALIASES.items()]
    yield row("small files that become large", tries, target.jobs)
    if os.geteuid() == 0:
        tries = [
            Try("by another user", partial(_connected, target, NOBODY)),
            Try("by root", partial(_connected, target, 0)),
        ]
        yield row("1,500 silent connections to the fork server", tries)


def _unpacked(target: Target, part: bytes) -> str:
    path = target.folder() / "reference.csv.gz"
    header = gzip.compress(b"model,cp\n")
    path.write_bytes(header + gzip.compress(part * (PART // len(part))) * PARTS)
    return refusal_missing(
        target.python(target.source, "-c", LIMITED, "validate", "--reference", path, limit_s=LIMIT_S)
    )


def _aliases(target: Target, first: str) -> str:
    """A GPU file whose last key has nine to the ninth values."""
    folder = target.bare()
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, LEVELS)]
    (folder / "config/gpu/bomb.yaml").write_text(first + "".join(levels))
    done = target.kareus(folder, "resolve", "gpu=bomb", "--output", "results", limit_s=LIMIT_S)
    return refusal_missing(done) or ("its refusal has no reason" if done.last_line.endswith(":") else "")


def _connected(target: Target, user: int) -> str:
    environment = target.environment(target.source)
    line = [sys.executable, "-c", SERVER]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True, cwd=target.source) as server:
        assert server.stdout
        address = server.stdout.readline().strip()
        time.sleep(5)  # it imports
        attacker = ["/usr/bin/env", "python3", "-c", CONNECTIONS, address]
        subprocess.run(attacker, user=user, cwd="/", check=False, timeout=LIMIT_S, capture_output=True)
        code = server.stdout.readline().strip()
    return "" if code == "None" else f"the server ended with code {code}"
