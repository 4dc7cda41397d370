"""A probe of torch and NCCL, printed as one line of JSON: a process of its own, so that the doctor starts fast.

With two GPUs and more it measures whether limits on CTAs hold: two ranks all-reduce under each limit, and the profiler
tells the grid of NCCL's kernel.
"""

import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import ProcessException, spawn

from kareus.model.communicators.nccl import OVERRIDES, nccl_options

LIMITS = (2, 8)
"""CTAs that are asked for; both are fewer than NCCL takes for such a message by itself."""
MESSAGE = 2**26
"""Elements of the message: large enough for all of the CTAs."""
RANKS = 2
PATIENCE_S = 60


def answer() -> dict[str, Any]:
    """Return versions, GPUs, what overrules limits, and the CTAs that NCCL took under each limit."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    has_nccl = dist.is_available() and dist.is_nccl_available()
    overrides = {name: os.environ[name] for name in OVERRIDES if name in os.environ}
    nccl: tuple[int, ...] = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    ctas, refused = _ctas() if has_nccl and len(gpus) >= RANKS and not overrides else ({}, "")
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) or None,
        "gpus": gpus,
        "overrides": overrides,
        "ctas": ctas,
        "refused": refused,
    }


def _ctas() -> tuple[dict[str, int], str]:
    """Blocks that NCCL took under each limit, and why a rank failed, if one did."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(_rank, args=(folder,), nprocs=RANKS)  # type: ignore[no-untyped-call]
        except ProcessException as error:
            return {}, str(error).strip().splitlines()[-1]
        return {str(limit): grid_of(json.loads(_trace(folder, limit).read_text())) for limit in LIMITS}, ""


def _rank(rank: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    meeting, patience = FileStore(str(Path(folder) / "meeting"), RANKS), timedelta(seconds=PATIENCE_S)
    dist.init_process_group("nccl", store=meeting, rank=rank, world_size=RANKS, timeout=patience)
    message = torch.zeros(MESSAGE, device="cuda", dtype=torch.bfloat16)
    for limit in LIMITS:
        group = dist.new_group(backend="nccl", pg_options=nccl_options(limit))
        dist.all_reduce(message, group=group)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            dist.all_reduce(message, group=group)
            torch.cuda.synchronize()
        if rank == 0:
            profile.export_chrome_trace(str(_trace(folder, limit)))
    dist.destroy_process_group()


def _trace(folder: str, limit: int) -> Path:
    return Path(folder) / f"{limit}.json"


def grid_of(trace: dict[str, Any]) -> int:
    """Return the blocks of the largest of NCCL's kernels in a trace of torch's profiler; 0 without one."""
    grids = [
        event["args"]["grid"][0]
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel" and event["name"].startswith("nccl")
    ]
    return max(grids, default=0)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer()) + "\n")
