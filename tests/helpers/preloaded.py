"""Snakemake, run to its end in a process forked from one that has imported it and what the workflow imports.

Importing takes Snakemake as long as reading the workflow and deciding what to run; hashing the package and composing
the configuration take most of the rest, and are done once for equal files. What is tested is not how it starts,
which `test_default_workload.py`, and every test that kills it or gives it an environment, does by its command line.
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

SERVER = """
import contextlib, gc, importlib, json, os, sys, tempfile
from pathlib import Path
for name in sys.argv[1:]:
    importlib.import_module(name)
from snakemake.cli import main
from kareus.artifacts.code import code_hash
from kareus.campaign.resolve import resolve_campaign
from kareus.cli import EVERY
from kareus.processes import die_with_parent

def prepare(folder, argv):
    # What depends on the content of files alone, which Snakemake then finds in the caches of functions.
    content = tuple(path.read_bytes() for path in sorted((folder / "config").rglob("*.yaml")))
    name = next((word.removeprefix("campaign=") for word in argv if word.startswith("campaign=")), "quickstart")
    if hash((name, content)) not in prepared:
        prepared.add(hash((name, content)))
        for command in EVERY.values():
            code_hash(command.module)
        with contextlib.suppress(Exception):  # Snakemake says what is wrong
            resolve_campaign(name, [], folder / "config")

prepared = set()
for line in sys.stdin:
    asked = json.loads(line)
    prepare(Path(asked["folder"]), asked["argv"])
    gc.freeze()
    process = os.fork()
    if process:
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
        continue
    die_with_parent()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, name, flags in ((0, os.devnull, 0), (1, asked["out"], 1), (2, asked["error"], 1)):
        os.dup2(os.open(name, flags), number)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)
    sys.argv = asked["argv"]
    sys.path[0] = asked["folder"]
    sys.exit(main())
"""
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
        line = [sys.executable, "-c", SERVER, *PRELOADED]
        server = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _servers.append(server)
        atexit.register(server.communicate)
    return _servers[0]
