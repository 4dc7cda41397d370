"""Snakemake, run to its end in a process forked from one that has imported it and what the workflow imports.

Importing takes Snakemake as long as reading the workflow and deciding what to run; hashing the package and composing
the configuration take most of the rest, and are done once for equal files. Its stages have been imported as well, and
draw no figures. What is tested is neither how it starts nor what it draws: `default_workload.py`, and every test that
kills it or gives it an environment, runs it by its command line, and `tests/report` looks at figures.
"""

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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

_servers: list[subprocess.Popen[str]] = []


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
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())
    except BaseException:  # a test that takes too long: its Snakemake ends with the server, and the next has another
        server.kill()
        _servers.clear()
        raise


def _server() -> subprocess.Popen[str]:
    """Return the process that has everything imported, which ends with this one; started by the first who asks."""
    if not _servers:
        line = [sys.executable, str(Path(__file__).with_name("snakemake_server.py")), *PRELOADED]
        server = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _servers.append(server)
        atexit.register(server.communicate)
    return _servers[0]
