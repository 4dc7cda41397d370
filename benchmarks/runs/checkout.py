"""A copy of what a clone has, and Snakemake in it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kareus.artifacts.shipped import PARTS

ROOT = Path(__file__).parents[2]
DRY = ("-n", "--logger-kareus-show=snakemake")
"""Arguments of a dry run that lists its jobs."""


def checkout(folder: Path, root: Path = ROOT) -> Path:
    """Copy what a clone of `root` has, without its environment and results."""
    for name in PARTS:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, folder / name)
    return folder


def command(*arguments: str) -> list[str]:
    """Command line of Snakemake."""
    return [sys.executable, "-m", "snakemake", *arguments]


def snakemake(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a checkout to its end."""
    return subprocess.run(command(*arguments), cwd=folder, capture_output=True, text=True, check=False, **options)


def would_run(folder: Path, *arguments: str, **options: Any) -> dict[str, int]:
    """Jobs by rule that Snakemake would run."""
    return jobs_of(snakemake(folder, *DRY, *arguments, **options))


def jobs_of(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """Jobs by rule that a dry run names."""
    assert done.returncode == 0, done.stderr
    table = re.findall(r"^(\w+)\s+(\d+)$", done.stdout + done.stderr, re.M)
    return {rule: int(count) for rule, count in table if rule != "total"}
