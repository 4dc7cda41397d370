"""Snakemake, run to its end in a process forked from one that has imported it and what the workflow imports.

Importing takes Snakemake as long as reading the workflow and deciding what to run; hashing the package and composing
the configuration take most of the rest, and are done once for equal files. All workers share that process. Its stages
have been imported as well, and draw no figures. What is tested is neither how it starts nor what it draws:
`default_workload.py`, and every test that kills it or gives it an environment, runs it by its command line, and
`tests/report` looks at figures.
"""

import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

import runs.checkout
from runs.checkout import DRY, ROOT, command, jobs_of

WORKFLOW = re.compile(r"^from (kareus\S*|snakemake_\S+) import", re.MULTILINE)
PRELOADED = [
    "snakemake.cli",
    "snakemake.report",
    "snakemake_logger_plugin_kareus",
    *("docutils.parsers.rst", "docutils.writers.html4css1", "pygments.formatters", "requests", "smart_open", "yte"),
    *sorted({name for path in (ROOT / "workflow/rules").glob("*.smk") for name in WORKFLOW.findall(path.read_text())}),
]
"""What every Snakemake that reads the workflow imports."""


def snakemake(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a checkout to its end; with options, such as an environment, by its command line."""
    if options:
        return runs.checkout.snakemake(folder, *arguments, **options)
    line = command(*arguments)
    asked = {"argv": line[2:], "folder": str(folder), "environment": dict(os.environ)}
    with tempfile.TemporaryDirectory() as place:
        out, error = Path(place) / "out", Path(place) / "error"
        for stream in (out, error):
            stream.touch()
        code = _asked(asked | {"out": str(out), "error": str(error)})
        return subprocess.CompletedProcess(line, code, out.read_text(), error.read_text())


def would_run(folder: Path, *arguments: str, **options: Any) -> dict[str, int]:
    """Jobs by rule that Snakemake would run."""
    return jobs_of(snakemake(folder, *DRY, *arguments, **options))


def _asked(request: dict[str, Any]) -> int:
    """Exit code of a Snakemake that the server forks."""
    server = _connected()
    try:
        server.write(json.dumps(request) + "\n")
        server.flush()
        return int(server.readline())
    except BaseException:  # a test that takes too long: its Snakemake ends, and the next has another connection
        server.close()
        _connected.cache_clear()
        raise


@functools.cache
def _connected() -> TextIO:
    """Return a connection to the server, which ends with the last one; the first who wants it starts it."""
    address = f"\0kareus-tests-snakemake-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    with socket.socket(socket.AF_UNIX) as client:
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                client.connect(address)
                return client.makefile("rw")
            with contextlib.suppress(OSError):  # another process has just started it
                _start(address)


def _start(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        line = [
            sys.executable,
            str(Path(__file__).with_name("snakemake_server.py")),
            str(listener.fileno()),
            *PRELOADED,
        ]
        started = subprocess.Popen(line, cwd=ROOT, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
    _started.append(started)


_started: list[subprocess.Popen[bytes]] = []
"""Kept, since it may have more to do for other workers when this one ends."""
