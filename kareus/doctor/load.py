"""Work that keeps GPUs busy while their clocks change: a process of its own, which says when each piece ran.

`python -m kareus.doctor.load 0` multiplies matrices on GPU 0; with several GPUs (`0,1`) one process for each of them
all-reduces, all by the communicator of NCCL. It prints a line for each piece of work, its start and end by the
machine's monotonic clock, and ends with its starter, or once its standard input closes.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from kareus.device.cuda import prepare_cuda
from kareus.processes import die_with_parent

SIZE = 4096
"""Of a square matrix: a product takes about a millisecond."""
MESSAGE = 2**25
"""Elements of a message in 16 bits, 64 MiB: an all-reduce takes about a millisecond over NVLink."""
PATIENCE_S = 60


def multiply(gpu: int) -> Callable[[], None]:
    """Return a piece of work that multiplies matrices."""
    torch.cuda.set_device(gpu)
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    result = torch.empty_like(left)

    def product() -> None:
        torch.mm(left, right, out=result)
        torch.cuda.synchronize()

    return product


def _reduce_on(rank: int, gpus: list[int], folder: str) -> None:
    die_with_parent()
    torch.cuda.set_device(gpus[rank])
    store, patience = FileStore(str(Path(folder) / "meeting"), len(gpus)), timedelta(seconds=PATIENCE_S)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=len(gpus), timeout=patience)
    message = torch.zeros(MESSAGE, device="cuda", dtype=torch.bfloat16)

    def all_reduce() -> None:
        dist.all_reduce(message)
        torch.cuda.synchronize()

    work(all_reduce, says=rank == 0)


def work(piece: Callable[[], None], *, says: bool = True) -> None:
    """Do `piece` over and over, and print when each began and ended."""
    while True:
        start_s = time.monotonic()
        piece()
        if says:
            sys.stdout.write(f"{start_s:.6f} {time.monotonic():.6f}\n")
            sys.stdout.flush()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Work on the GPUs that the only argument lists."""
    die_with_parent()
    prepare_cuda()  # numbers GPUs as the driver does
    threading.Thread(target=_end_with_input, daemon=True).start()
    gpus = [int(gpu) for gpu in sys.argv[1].split(",")]
    if len(gpus) == 1:
        work(multiply(gpus[0]))
    with tempfile.TemporaryDirectory() as folder:
        spawn(_reduce_on, args=(gpus, folder), nprocs=len(gpus))  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
