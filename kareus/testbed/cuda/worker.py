"""The process that has one GPU; started by `kareus.testbed.cuda.group`, and gone when its starter is.

Reads its settings, then calls of the methods of `Rank` by name, from a socket that it inherits.
"""

import contextlib
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from kareus.artifacts.records import from_plain
from kareus.device.cuda import device_of_cuda, prepare_cuda
from kareus.errors import DeviceError, KareusError
from kareus.model.communicators.choice import Library
from kareus.model.communicators.mscclpp import load_library
from kareus.processes import die_with_parent
from kareus.testbed.config import ClockPolicy, CudaCollectives
from kareus.testbed.cuda.channel import Channel, exit_after_hangup
from kareus.testbed.cuda.collectives import Collectives
from kareus.testbed.cuda.executor import Executor
from kareus.testbed.cuda.rank import Rank

CALLS = ("identify", "claim", "load", "set_clock", "execute", "read", "release")
"""Names of the calls that a rank answers."""

_GRACE_S = 20.0
"""Time from the end of its parent to a worker's own exit, if it hangs in a collective whose peer has exited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """First message to a worker."""

    rank: int
    axes: dict[str, int]
    """Process groups and their sizes, which lay out the workers; none for one that is alone."""
    workers: int
    collectives: CudaCollectives
    clocks: ClockPolicy
    rendezvous: str
    """Path of a file that does not exist yet, by which the workers find each other."""


def main() -> None:
    """Serve on the descriptor that is the only argument."""
    die_with_parent()
    prepare_cuda()
    with contextlib.suppress(KeyboardInterrupt):  # the parent process reports it
        channel = Channel(socket.socket(fileno=int(sys.argv[1])))
        exit_after_hangup(channel, _GRACE_S)
        serve(channel, cuda_rank)
        if dist.is_initialized():
            dist.destroy_process_group()


def serve(channel: Channel, make_rank: Callable[[WorkerSettings], Rank]) -> None:
    """Make the rank that the settings ask for, then answer calls until the other end hangs up."""
    with contextlib.suppress(EOFError):
        made = list[Rank]()
        _answer(channel, lambda settings: made.append(make_rank(from_plain(WorkerSettings, settings))))
        for rank in made:  # one, unless it could not be made
            with contextlib.closing(rank):
                while True:
                    _answer(channel, partial(_called, rank))


def _called(rank: Rank, call: Sequence[Any]) -> Any:
    name, *arguments = call
    assert name in CALLS, name
    return getattr(rank, name)(*arguments)


def _answer(channel: Channel, act: Callable[[Any], Any]) -> None:
    """Execute each request and send its result; an error that a user can act on is sent as a result."""
    try:
        answer = {"answer": act(channel.receive())}
    except KareusError as error:
        answer = {"error": str(error)}
    channel.send(answer)


def cuda_rank(settings: WorkerSettings) -> Rank:
    """The rank on the GPU of its number.

    Raises:
        DeviceError: torch does not see it.
        EngineError: the library of collectives is not installed.
    """
    library = Library(settings.collectives)
    if library is Library.MSCCLPP:
        load_library()  # before anything waits for this worker
    if settings.rank >= torch.cuda.device_count():
        raise DeviceError(
            f"GPU {settings.rank}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs; install torch for "
            "the CUDA of this machine's driver, as envs/README.md says."
        )
    torch_device = torch.device("cuda", settings.rank)
    torch.cuda.set_device(torch_device)
    device = device_of_cuda(str(torch.cuda.get_device_properties(torch_device).uuid))
    collectives = connect(settings, torch_device, library)
    return Rank(device, settings.clocks, lambda program: Executor(program, collectives, torch_device))


def connect(settings: WorkerSettings, device: torch.device, library: Library) -> Collectives:
    """Find the other workers, if there are any, to communicate with them by `library`."""
    if settings.collectives is CudaCollectives.LOOPBACK:
        library = Library.LOOPBACK
    elif settings.workers > 1:
        backend = "cpu:gloo,cuda:nccl" if library is Library.MSCCLPP else library
        dist.init_process_group(
            backend, init_method=f"file://{settings.rendezvous}", rank=settings.rank, world_size=settings.workers
        )
    return Collectives(library, settings.axes, settings.rank, device)


if __name__ == "__main__":
    main()
