"""CUDA's settings in the environment, and the driver's GPU that CUDA computes on.

CUDA numbers GPUs by speed, the driver by their place on the bus, and both read `CUDA_VISIBLE_DEVICES` as their own
numbers. GPUs are therefore matched by UUID: matched by number, another process's GPU could have its clock locked.
"""

import os

from kareus.device.protocol import Device
from kareus.errors import DeviceError

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Variable with the number of queues to a GPU."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Variable with the GPUs that a process may use: indices, or UUIDs."""


def prepare_cuda() -> None:
    """Number GPUs as the driver does and begin kernels in the order of their launches; call it before CUDA starts.

    It sets environment variables of this process and those that it starts; CUDA reads them once. A plan names the
    operator beside which a collective is launched, and kernels that fill a GPU leave no room for one that begins after
    them. With one queue to the GPU, kernels of all streams begin in the order of their launches (NVIDIA/Megatron-LM,
    issue 533), as those of several NCCL communicators have to on all ranks (NVIDIA/nccl, issue 195). A number of queues
    that is already set is kept.
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.setdefault(QUEUES, "1")


def visible_uuids() -> list[str]:
    """Return the UUIDs that `CUDA_VISIBLE_DEVICES` lists; none if it lists indices or is not set.

    Raises:
        DeviceError: it lists a slice of a GPU.
    """
    listed = [name.strip() for name in os.environ.get(VISIBLE, "").split(",")]
    for name in listed:
        check_whole(name)
    return listed if all(name.startswith("GPU-") for name in listed) else []


def check_whole(uuid: str) -> None:
    """Check that a UUID is of a whole GPU, whose clock and energy are its own.

    Raises:
        DeviceError: it is of a slice.
    """
    if uuid.startswith("MIG"):
        raise DeviceError(
            f"{uuid}: is a MIG slice, which shares clock and energy counter with the other slices of its GPU; use "
            "whole GPUs (`nvidia-smi -mig 0` as root), or plan on the simulated testbed."
        )


def device_of_cuda(uuid: str) -> Device:
    """Return the GPU that CUDA calls `uuid`, as its driver shows it.

    Raises:
        DeviceError: the driver shows no such GPU among those that `CUDA_VISIBLE_DEVICES` leaves visible, or it is a
            slice of one.
    """
    check_whole(uuid)
    from kareus.device import nvml  # noqa: PLC0415 - Zeus takes seconds to import

    devices = nvml.open_devices()
    for device in devices:
        if uuid.removeprefix("GPU-") == device.uuid.removeprefix("GPU-"):
            return device
    shown = ", ".join(device.uuid for device in devices)
    raise DeviceError(
        f"{uuid}: CUDA computes on this GPU and the driver shows others ({shown}); unset CUDA_DEVICE_ORDER, and list "
        "in CUDA_VISIBLE_DEVICES indices or UUIDs that `nvidia-smi -L` prints."
    )
