"""Killing Snakemake with SIGKILL at some moment, and running it again at once."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runs.checkout import command, snakemake


@dataclass(frozen=True)
class Killed:
    """How a killed run went on."""

    after_s: float
    """Time after which it was killed."""
    again_s: float
    """Time that running it again took."""
    failure: str
    """What running it again said if it failed; empty if not."""


def kill(
    folder: Path, moment: Callable[[], object], *arguments: str, sent: signal.Signals = signal.SIGKILL
) -> float | None:
    """Start Snakemake in a checkout and kill it.

    Args:
        folder: the checkout.
        moment: returns when it is time.
        arguments: of Snakemake.
        sent: SIGKILL is sent to Snakemake alone, as an out-of-memory killer would; SIGINT to its jobs as well, as a
            terminal does.

    Returns:
        Seconds after which it was killed; None if it had already ended well.

    Raises:
        CalledProcessError: it failed before.
    """
    start_s = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(*arguments), cwd=folder, start_new_session=True, **quiet) as running:
        moment()
        if running.poll() is not None:
            subprocess.CompletedProcess(running.args, running.returncode).check_returncode()
            return None
        (os.killpg if sent is signal.SIGINT else os.kill)(running.pid, sent)
        after_s = time.perf_counter() - start_s
        running.wait(timeout=60)
    return after_s


def kill_and_run_again(folder: Path, after_s: float, *arguments: str) -> Killed | None:
    """Kill a run after a time and run it again at once; None if it had ended before."""
    killed_s = kill(folder, lambda: time.sleep(after_s), *arguments)
    if killed_s is None:
        return None
    start_s = time.perf_counter()
    again = snakemake(folder, *arguments)
    failure = "" if again.returncode == 0 else again.stderr
    return Killed(after_s=killed_s, again_s=time.perf_counter() - start_s, failure=failure)
