"""What a command takes: time, CPU time and memory of itself and of all that it starts."""

import os
import resource
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLED_EVERY_S = 0.5


@dataclass(frozen=True)
class Effort:
    """What a command took."""

    returncode: int
    wall_s: float
    cpu_s: float
    """User and system time of all processes that were waited for."""
    peak_gib: float
    """Most memory at once, shared pages counted once (sum of proportional set sizes, sampled)."""
    output: str


def run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> Effort:
    """Run a command to its end and say what it took (Linux only)."""
    peak = [0]
    start_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, ended, peak))
        watcher.start()
        output, _ = process.communicate()
        ended.set()
        watcher.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Effort(
        returncode=process.returncode,
        wall_s=time.perf_counter() - start_s,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_gib=peak[0] / 2**30,
        output=output,
    )


def _watch(pid: int, ended: threading.Event, peak: list[int]) -> None:
    while not ended.wait(SAMPLED_EVERY_S):
        peak[0] = max(peak[0], _memory(pid))


def _memory(pid: int) -> int:
    """Bytes that a process and its descendants hold now."""
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    used = 0
    for process in processes:
        try:
            used += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended meanwhile
            continue
    return used
