"""One GPU, two libraries: finding in the driver the GPU that CUDA computes on.

CUDA numbers GPUs by speed, the driver by their place on the bus, and both read `CUDA_VISIBLE_DEVICES` as their own
numbers; whoever pairs them by number may lock the clock of somebody else's GPU.
"""

from kareus.device.protocol import Device
from kareus.errors import DeviceError


def device_of_cuda(uuid: str) -> Device:
    """The GPU that CUDA calls `uuid`, as its driver shows it.

    Raises:
        DeviceError: the driver shows no such GPU among those that `CUDA_VISIBLE_DEVICES` leaves visible.
    """
    from kareus.device import nvml  # noqa: PLC0415 - Zeus takes seconds to import

    devices = nvml.open_devices()
    for device in devices:
        if uuid.removeprefix("GPU-") == device.uuid.removeprefix("GPU-"):
            return device
    shown = ", ".join(device.uuid for device in devices)
    raise DeviceError(
        f"{uuid}: CUDA computes on this GPU and the driver shows others ({shown}); unset CUDA_DEVICE_ORDER, and list "
        "in CUDA_VISIBLE_DEVICES the indices that `nvidia-smi` prints."
    )
