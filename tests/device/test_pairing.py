"""The GPU whose clock is locked is the one that computes, however libraries number them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_device import FakeDevice

from kareus.device import nvml
from kareus.device.pairing import device_of_cuda
from kareus.errors import DeviceError


@pytest.fixture(autouse=True)
def _two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(FakeDevice(tmp_path, uuid=f"GPU-{name}") for name in ("slow", "fast"))
    monkeypatch.setattr(nvml, "open_devices", lambda: devices)


@pytest.mark.parametrize("uuid", ["fast", "GPU-fast"])
def test_a_gpu_is_found_by_its_uuid_with_cudas_prefix_or_without(uuid: str) -> None:
    assert device_of_cuda(uuid).uuid == "GPU-fast"


def test_a_gpu_that_the_driver_does_not_show_is_refused_with_those_that_it_does() -> None:
    with pytest.raises(DeviceError, match=r"^other: CUDA computes .* \(GPU-slow, GPU-fast\); unset CUDA_DEVICE_ORDER"):
        device_of_cuda("other")


def test_training_has_cuda_number_gpus_as_the_driver_does_before_torch_is_loaded() -> None:
    script = (
        "import os, sys\n"
        "from kareus.cli import main\n"
        "assert main(['train', '--iterations', '1', '--output', 'nowhere']) == 2\n"
        "print(os.environ['CUDA_DEVICE_ORDER'], 'torch' in sys.modules)\n"
    )
    environment = os.environ | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "PCI_BUS_ID False\n"
