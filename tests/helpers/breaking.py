"""Commands for PATH that are killed the first time that a job calls them; other versions of the package, that kill."""

import os
import shutil
import sys
from pathlib import Path

from runs.checkout import ROOT

# Names of temporary files have the number and the start of a process, by which no call is like another.
SCRIPT = """#!/bin/sh
called="$BREAKING/$(printf '%s ' "$0" "$@" | sed 's/[.][0-9]*-[0-9]*[.]kareus[.]tmp//g' | cksum | tr ' ' '-')"
if [ -e "$BREAKING/on" ] && [ ! -e "$called" ]; then
    : > "$called"
    kill -9 $$
fi
exec {real} "$@"
"""


def breaking(folder: Path) -> dict[str, str]:
    """Environment in which every job is killed when it runs for the first time."""
    folder.mkdir()
    (folder / "on").touch()
    for name, real in (("python", sys.executable), ("cp", shutil.which("cp")), ("printf", shutil.which("printf"))):
        script = folder / name
        script.write_text(SCRIPT.format(real=real))
        script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "BREAKING": str(folder)}


def other_version(folder: Path, source: str = "errors.py", added: str = "\n# Another version.\n") -> dict[str, str]:
    """Environment with a copy of the package with lines `added` to a `source`; every stage sees that of errors.

    What is compiled is copied as well, so that only the edited module is compiled anew.
    """
    shutil.copytree(ROOT / "kareus", folder / "kareus", ignore=shutil.ignore_patterns("*.pyc.*"))  # being written
    shutil.copytree(ROOT / "snakemake_logger_plugin_kareus", folder / "snakemake_logger_plugin_kareus")
    with (folder / "kareus" / source).open("a") as edited:
        edited.write(added)
    return {"PYTHONPATH": str(folder)}


KILLING = """

def _killed(moment):
    import os, signal, time
    import psutil

    victim, at = os.environ.get("KILLED", "|").split("|")
    if at == moment and victim == "job":
        os.kill(os.getpid(), signal.SIGKILL)
    if at == moment:
        [*_, outermost] = [p for p in psutil.Process().parents() if "snakemake" in " ".join(p.cmdline())]
        outermost.kill()
        time.sleep(20)  # Linux ends it sooner, as its parent is gone
        os._exit(1)


_undisturbed = run


def run(*arguments, **options):
    _killed("it starts")
    answer = _undisturbed(*arguments, **options)
    _killed("it has written")
    return answer
"""
"""Lines that kill a command of a stage, or Snakemake, if `KILLED` says so: by whom and when, with a bar between."""
