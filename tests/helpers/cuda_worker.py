"""A worker as `kareus.testbed.cuda.worker` is, on a CPU and a fake device: `python cuda_worker.py FOLDER FD`.

Importing torch takes such a process two seconds: `fork_them` has groups fork theirs from one that has imported it.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.fake_device import FakeDevice
from helpers.worlds import fork
from kareus.model.communicators.choice import Library
from kareus.processes import die_with_parent
from kareus.testbed.cuda import group
from kareus.testbed.cuda.channel import Channel
from kareus.testbed.cuda.executor import Executor
from kareus.testbed.cuda.rank import Rank
from kareus.testbed.cuda.worker import connect, serve

CPU = torch.device("cpu")


def fake_device(folder: Path, rank: int) -> FakeDevice:
    """The device of a rank."""
    own = folder / str(rank)
    own.mkdir(exist_ok=True)
    return FakeDevice(own, uuid=f"GPU-{rank}")


class MortalExecutor(Executor):
    """Kills its process if the file exists that an environment variable names."""

    def run(self, repetitions):
        if Path(os.environ["KAREUS_TEST_DIE"]).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        super().run(repetitions)


class ForkedWorker:
    """What `subprocess.Popen` is to a group of workers."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int], process_group: int) -> None:
        assert process_group == 0
        *_, folder, descriptor = command
        assert [int(descriptor)] == list(pass_fds)
        with socket.socket(fileno=os.dup(int(descriptor))) as connection:
            self._process = fork(_work_in, dict(os.environ), Path(folder), connection)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def fork_them(patch: pytest.MonkeyPatch) -> None:
    """Have groups fork their workers; how the real ones start, a test must see that does without."""
    patch.setattr(group, "subprocess", SimpleNamespace(Popen=ForkedWorker, TimeoutExpired=subprocess.TimeoutExpired))


def _work_in(environment: dict[str, str], folder: Path, connection: socket.socket) -> None:
    os.environ.clear()
    os.environ.update(environment)
    work(folder, connection)


def work(folder: Path, connection: socket.socket) -> None:
    """Serve on a connection until its other end hangs up."""
    torch.set_num_threads(1)
    die_with_parent()

    def make(settings):
        collectives = connect(settings, CPU, Library.GLOO)
        kind = MortalExecutor if settings.rank == 1 else Executor
        return Rank(fake_device(folder, settings.rank), settings.clocks, lambda p: kind(p, collectives, CPU))

    serve(Channel(connection), make)


if __name__ == "__main__":
    work(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
