"""Commands for PATH that are killed the first time that a job calls them, and another version of the package."""

import os
import shutil
import sys
from pathlib import Path

from runs.checkout import ROOT

# Names of temporary files have the number of a process, by which no call is like another.
SCRIPT = """#!/bin/sh
called="$BREAKING/$(printf '%s ' "$0" "$@" | sed 's/[.][0-9]*[.]tmp//g' | cksum | tr ' ' '-')"
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


def other_version(folder: Path, source: str = "errors.py") -> dict[str, str]:
    """Environment with a copy of the package with another `source`; every stage sees that of errors."""
    shutil.copytree(ROOT / "kareus", folder / "kareus", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "snakemake_logger_plugin_kareus", folder / "snakemake_logger_plugin_kareus")
    with (folder / "kareus" / source).open("a") as edited:
        edited.write("\n# Another version.\n")
    return {"PYTHONPATH": str(folder)}
