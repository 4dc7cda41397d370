"""A worker as `kareus.testbed.cuda.worker` is, on a CPU and a fake device: `python cuda_worker.py FOLDER FD`."""

import os
import signal
import socket
import sys
from pathlib import Path

import torch

from helpers.fake_device import FakeDevice
from kareus.model.communicators.choice import Library
from kareus.processes import die_with_parent
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


def main() -> None:
    torch.set_num_threads(1)
    die_with_parent()
    folder = Path(sys.argv[1])

    def make(settings):
        collectives = connect(settings, CPU, Library.GLOO)
        kind = MortalExecutor if settings.rank == 1 else Executor
        return Rank(fake_device(folder, settings.rank), settings.clocks, lambda p: kind(p, collectives, CPU))

    serve(Channel(socket.socket(fileno=int(sys.argv[2]))), make)


if __name__ == "__main__":
    main()
