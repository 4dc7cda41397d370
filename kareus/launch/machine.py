"""Requirements of a training on this machine, checked before ranks are started and without importing torch.

A rank takes seconds to find its GPU missing, and minutes to be killed for memory that the machine does not have.
"""

import importlib.util
import os
from pathlib import Path

from kareus.errors import EngineError
from kareus.graph.number_formats import ADAMW_BYTES, FP32_BYTES
from kareus.launch.torch_version import check_torch_version
from kareus.workload.config import Workload
from kareus.workload.memory import GIB
from kareus.workload.state_memory import stage_parameters

STATE_BYTES = FP32_BYTES + ADAMW_BYTES
"""Bytes of a parameter on a CPU: weight, gradient and both moments of AdamW, all in fp32."""
PROCESS_BYTES = 200 * 2**20
"""Memory of a rank without a model: Python and PyTorch."""


def check_machine(workload: Workload, communicator: str) -> None:
    """Check that all ranks of `workload` can run on this machine.

    Raises:
        EngineError: PyTorch is of another version, the communicator is not installed, or there are too few GPUs, or too
            little memory for gloo.
    """
    check_torch_version()
    ranks = workload.parallelism.gpus
    if communicator == "mscclpp" and importlib.util.find_spec("mscclpp") is None:
        raise EngineError(
            "communicator 'mscclpp': cannot be imported (not installed); build it as envs/README.md says, or choose "
            "'nccl'."
        )
    if communicator == "gloo":
        needed, available = least_bytes(workload), available_bytes()
        if available is not None and needed > available:
            raise EngineError(
                f"--communicator gloo: {ranks} ranks need at least {needed / GIB:,.1f} GiB of memory for weights, "
                f"gradients and optimizer, this machine has {available / GIB:,.1f} free; train a smaller model, or "
                "start ranks on more machines with torchrun."
            )
    elif (gpus := visible_gpus()) < ranks:
        raise EngineError(
            f"--communicator {communicator}: needs a GPU for each rank, and there are {gpus} here for {ranks}; start "
            "ranks on more machines with torchrun, or take gloo to train on CPUs."
        )


def least_bytes(workload: Workload) -> int:
    """Return the memory that all ranks take together on CPUs, activations apart."""
    parallelism = workload.parallelism
    per_rank = [
        stage_parameters(workload.model, parallelism, stage, layers) for stage, layers in enumerate(parallelism.split)
    ]
    return sum(per_rank) * parallelism.gpus_per_stage * STATE_BYTES + parallelism.gpus * PROCESS_BYTES


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that new processes can have, within the limit of a container; None where it is unknown."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines if ":" in line)
    free = [sum(int(sizes[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree") if name in sizes)]
    group = root / "sys/fs/cgroup"
    if (group / "memory.max").is_file() and (group / "memory.current").is_file():
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        if limit != "max":
            free.append(int(limit) - int(used) + _page_cache_bytes(group / "memory.stat"))
    return min(free)


def _page_cache_bytes(path: Path) -> int:
    """Return how much of what a control group uses are pages of files, which Linux gives back when memory is short."""
    if not path.is_file():
        return 0
    sizes = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
    return sum(int(sizes.get(name, 0)) for name in ("inactive_file", "active_file"))


def visible_gpus() -> int:
    """Return how many GPUs CUDA can use here."""
    import pynvml  # noqa: PLC0415 - only training on GPUs needs the driver

    try:
        pynvml.nvmlInit()
        present = int(pynvml.nvmlDeviceGetCount())
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    names = [name for name in chosen.split(",") if name.strip() not in ("", "-1")]
    return len(names) if "MIG" in chosen else min(present, len(names))
