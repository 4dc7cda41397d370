"""The real device, with Zeus' GPU replaced: what the driver answers becomes values, what it refuses one line."""

import os

import httpx
import pynvml
import pytest
from zeus.device.gpu import ZeusGPUNoPermissionError, ZeusGPUUnknownError

from kareus.device.nvml import NvmlDevice
from kareus.errors import DeviceError


class ZeusGpu:
    """As much of Zeus' `NVIDIAGPU` as a device uses."""

    handle = "handle"
    gpu_index = 3

    def __init__(self, refusal=None):
        self.refusal = refusal
        self.locked = None

    def get_name(self):
        return "NVIDIA Test"

    def get_supported_memory_clocks(self):
        return [810, 1593]

    def get_supported_graphics_clocks(self, memory_mhz):
        return {1593: [1410, 1395, 210], 810: [705]}[memory_mhz]

    def set_gpu_locked_clocks(self, lowest_mhz, highest_mhz):
        if self.refusal:
            raise self.refusal
        self.locked = lowest_mhz, highest_mhz

    def get_total_energy_consumption(self):
        return 12_345


@pytest.fixture(autouse=True)
def _nvml(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: "GPU-1")
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.1")
    bits = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda handle: bits)


def test_a_device_speaks_in_the_units_of_its_names():
    device = NvmlDevice(ZeusGpu())
    assert (device.uuid, device.name, device.driver) == ("GPU-1", "NVIDIA Test", "580.1")
    assert device.supported_clocks_mhz() == (210, 1395, 1410)
    assert device.energy_j() == 12.345
    assert device.throttle_reasons() == ("idle", "power-limit")


def test_both_ends_of_the_clock_are_locked():
    gpu = ZeusGpu()
    NvmlDevice(gpu).lock_clock(1395)
    assert gpu.locked == (1395, 1395)


@pytest.mark.parametrize(
    ("user", "right"), [(1000, "run as root"), (0, "start the container with --cap-add SYS_ADMIN")]
)
def test_a_user_without_rights_learns_what_to_do(monkeypatch, user, right):
    """Root has no right in a container without the capability."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(DeviceError) as refused:
        NvmlDevice(ZeusGpu(ZeusGPUNoPermissionError("Insufficient Permissions"))).lock_clock(1395)
    assert str(refused.value) == (
        f"GPU 3: no right to set clocks; {right}, or have zeusd started and name its socket in ZEUSD_SOCK_PATH."
    )


def test_any_other_refusal_is_one_line_that_names_the_call():
    with pytest.raises(DeviceError) as refused:
        NvmlDevice(ZeusGpu(ZeusGPUUnknownError("Unknown\nError"))).lock_clock(1395)
    assert str(refused.value) == "GPU 3: set_gpu_locked_clocks failed (Unknown Error); see `nvidia-smi -q`."


def test_a_zeusd_that_has_ended_is_told_in_one_line():
    with pytest.raises(DeviceError) as refused:
        NvmlDevice(ZeusGpu(httpx.ConnectError("[Errno 2] No such file or directory"))).lock_clock(1395)
    assert str(refused.value) == (
        "GPU 3: set_gpu_locked_clocks failed ([Errno 2] No such file or directory); see `nvidia-smi -q`."
    )
