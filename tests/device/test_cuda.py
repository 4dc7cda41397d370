"""The GPU whose clock is locked is the one that computes, however libraries number them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fake_device import FakeDevice

from kareus.device import nvml
from kareus.device.cuda import device_of_cuda
from kareus.errors import DeviceError


@pytest.fixture(autouse=True)
def _two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(FakeDevice(tmp_path, uuid=f"GPU-{name}") for name in ("slow", "fast"))
    monkeypatch.setattr(nvml, "open_devices", lambda: devices)


@pytest.mark.parametrize("uuid", ["fast", "GPU-fast"])
def test_a_gpu_is_found_by_uuid_with_and_without_prefix(uuid: str) -> None:
    assert device_of_cuda(uuid).uuid == "GPU-fast"


def test_an_invisible_gpu_is_refused_with_the_visible_ones() -> None:
    with pytest.raises(DeviceError, match=r"^other: CUDA computes .* \(GPU-slow, GPU-fast\); unset CUDA_DEVICE_ORDER"):
        device_of_cuda("other")


@pytest.mark.parametrize(("queues", "kept"), [(None, "1"), ("8", "8")])
def test_training_prepares_cuda_before_torch_is_loaded(queues: str | None, kept: str) -> None:
    script = (
        "import os, sys\n"
        "from kareus.cli import main\n"
        "assert main(['train', '--iterations', '1', '--output', 'nowhere']) == 2\n"
        "names = 'CUDA_DEVICE_ORDER', 'CUDA_DEVICE_MAX_CONNECTIONS'\n"
        "print(*map(os.environ.get, names), 'torch' in sys.modules)\n"
    )
    environment = os.environ | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    environment.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if queues is not None:
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = queues
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"PCI_BUS_ID {kept} False\n"
