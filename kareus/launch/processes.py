"""Starting all ranks of a training on this machine, as torchrun does; on several machines torchrun is needed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from kareus.errors import EngineError
from kareus.processes import PARENT_VARIABLE

_PATIENCE_S = 10.0
"""Time from the failure of one rank until the others are sent SIGTERM, and from then until they are killed; usually
they end each other sooner."""
_POLL_S = 0.05


def is_rank(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun, or `launch`, has started this process."""
    return "RANK" in environment


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def launch(arguments: Sequence[str], ranks: int) -> None:
    """Run `python -m kareus` with `arguments` on every rank and wait for all.

    Raises:
        SystemExit: a rank failed and printed the reason.
        EngineError: a rank was killed, so that none printed the reason.
    """
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    common[PARENT_VARIABLE] = str(os.getpid())
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "kareus", *arguments],
            env={"OMP_NUM_THREADS": "1", **os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        _wait(processes)
    finally:
        _end(processes)
    codes = [process.returncode for process in processes]
    if any(codes):
        if max(codes) > 0:  # a rank that ended by itself has printed the reason
            raise SystemExit(max(codes))
        rank = next(rank for rank, code in enumerate(codes) if code)
        raise EngineError(f"rank {rank}: ended with code {codes[rank]} and said nothing; see the system's log.")


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all, or for a while after the first that fails."""
    deadline_s: float | None = None
    while None in (codes := [process.poll() for process in processes]):  # ask all: a stopped rank hides no other
        if deadline_s is None and any(codes):
            deadline_s = time.monotonic() + _PATIENCE_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            return
        time.sleep(_POLL_S)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End those that have not, with time to restore their clocks."""
    for process in processes:
        process.terminate()
        process.send_signal(signal.SIGCONT)  # one that is stopped would not notice
    for process in processes:
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
