"""The default workload, planned by the workflow once for all tests of a run, in whichever process asks first."""

import fcntl
import shutil
from pathlib import Path

from runs.checkout import checkout, snakemake

NAME = "llama3.2-3b_pp2-tp8_mbs8_seq4096_a100"


def planned_once(folder: Path) -> Path:
    """A checkout in `folder` / "checkout" in which the default workload is planned; others wait while one plans it."""
    folder.mkdir(exist_ok=True)
    whole, planned = folder / "whole", folder / "checkout"
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(planned, ignore_errors=True)  # of a process that failed
            done = snakemake(checkout(planned))
            assert done.returncode == 0, done.stdout + done.stderr
            whole.touch()
    return planned
