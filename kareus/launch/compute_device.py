"""The torch device of a rank: which one it is, its dtype, and waiting for it."""

import os

import torch

from kareus.errors import EngineError
from kareus.model.communicators.choice import Library
from kareus.model.communicators.mscclpp import load_library


def select_device(library: Library) -> torch.device:
    """Return the device of this process and make it the current one: a CPU for gloo, else the GPU `LOCAL_RANK`.

    Where a scheduler shows each process one GPU in `CUDA_VISIBLE_DEVICES`, as Slurm's `--gpus-per-task=1`, it is that.

    Raises:
        EngineError: the library is not installed, or there is no such GPU.
    """
    if library is Library.MSCCLPP:
        load_library()
    if library is Library.GLOO:
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
        local = 0
    if local >= torch.cuda.device_count():
        raise EngineError(
            f"--communicator {library}: needs a GPU for each rank and there is no GPU {local} here; take gloo to "
            "train on CPUs."
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of weights and activations on `device`."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def synchronize_computation(device: torch.device) -> None:
    """Wait until `device` has computed what was launched; messages to and from other stages may be under way."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
