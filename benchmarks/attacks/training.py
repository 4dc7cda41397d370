"""Ranks of a training that are stopped or killed: the others end, and whoever restarts them goes on exactly."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil

from attacks.rows import Row, Try, row
from attacks.target import Target
from attacks.tiny import KAREUS, resolving, trained, training, workload_below

STOPPED_S = 150.0
"""Wall time within which all end when one rank stands still; a heartbeat takes seconds."""
ITERATIONS = 40


def attacks(target: Target) -> Iterator[Row]:
    """Stop a rank; kill one below torchrun, twice."""
    folder = target.folder("training")
    done = target.kareus(folder, *resolving(2, folder / "tiny"), "--config-dir", target.source / "config")
    assert done.code == 0, done.output
    workload = workload_below(folder / "tiny")
    tries = [Try(f"rank {rank} stopped", partial(_stopped, target, folder, workload, rank)) for rank in (0, 1)]
    yield row("a rank stopped (SIGSTOP), then all others end", tries, target.jobs)
    tries = [
        Try(f"rank {rank} killed below torchrun", partial(_restarted, target, folder, workload, rank))
        for rank in (0, 1)
    ]
    yield row("a rank killed below `torchrun --max-restarts=2`, then on to the same weights", tries, target.jobs)


def _stopped(target: Target, folder: Path, workload: Path, rank: int) -> str:
    output = folder / f"stopped-{rank}"
    line = KAREUS + training(workload, 100_000, output)
    with _started(target, folder, line) as process:
        _wait_for(output, 2)
        victim = _rank(process.pid, rank)
        victim.suspend()
        start_s = time.monotonic()
        try:
            process.wait(STOPPED_S)
        except subprocess.TimeoutExpired:
            return f"the others go on waiting after {STOPPED_S:.0f} s"
        said = process.stderr.read().decode() if process.stderr else ""
    if process.returncode == 0 or "Traceback" in said:
        return f"exit code {process.returncode} after {time.monotonic() - start_s:.0f} s: {said.strip()[-200:]}"
    return "the stopped rank is still there" if victim.is_running() and victim.status() == "stopped" else ""


def _restarted(target: Target, folder: Path, workload: Path, rank: int) -> str:
    whole, output = folder / f"whole-{rank}", folder / f"restarted-{rank}"
    done = target.kareus(folder, *training(workload, ITERATIONS, whole))
    assert done.code == 0, done.output
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=2"]
    port = f"--master-port={29_500 + os.getpid() % 1000 + rank}"
    line = [*torchrun, port, "-m", "kareus", *training(workload, ITERATIONS, output)]
    with _started(target, folder, line) as process:
        _wait_for(output, 3)
        _rank(process.pid, rank).kill()
        try:
            process.wait(300)
        except subprocess.TimeoutExpired:
            return "hangs after a restart"
        said = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        return f"exit code {process.returncode}: {' '.join(said.split())[-200:]}"
    same = trained(output, ITERATIONS) == trained(whole, ITERATIONS)
    shutil.rmtree(output)
    return "" if same else "other weights or losses than of a training that nobody disturbed"


@contextlib.contextmanager
def _started(target: Target, folder: Path, line: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start a training; whatever is left of it in the end is killed."""
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(line, cwd=folder, env=target.environment(folder), start_new_session=True, **pipes)
    below: list[psutil.Process] = []
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for left in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.wait()


def _wait_for(output: Path, iteration: int, limit_s: float = 240.0) -> None:
    """Wait until a checkpoint of an iteration, or of a later one, is there."""
    deadline_s = time.monotonic() + limit_s
    while not any(int(path.name[-8:]) >= iteration for path in output.glob("checkpoints/iteration-????????")):
        assert time.monotonic() < deadline_s, "the training does not start"
        time.sleep(0.05)


def _rank(process: int, rank: int) -> psutil.Process:
    """The process of a rank that `process` started."""
    for child in psutil.Process(process).children(recursive=True):
        if child.environ().get("RANK") == str(rank):
            return child
    raise LookupError(f"no process of rank {rank}")
