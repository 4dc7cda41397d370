"""From a clock's name down to the driver's library: the real pynvml and Zeus, over a library that is made up in C."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kareus.device.claims import FOLDER_VARIABLE

COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")

SOURCE = Path(__file__).with_name("made_up_driver.c")
READ = """
import json
from kareus.device.nvml import open_devices
(gpu,) = open_devices()
gpu.lock_clock(1395)
locked_mhz = gpu.clock_mhz()
gpu.reset_clock()
before_w = gpu.power_limit_w()
gpu.set_power_limit(300.5)
offered = gpu.power_profiles()
if offered:
    gpu.request_power_profiles(offered)
    requested, enforced = gpu.requested_power_profiles(), gpu.enforced_power_profiles()
    gpu.clear_power_profiles(offered[:1])
    offered = [offered, requested, enforced, gpu.requested_power_profiles()]
print(json.dumps({
    "uuid": gpu.uuid, "name": gpu.name, "driver": gpu.driver, "clocks_mhz": gpu.supported_clocks_mhz(),
    "locked_mhz": locked_mhz, "clock_mhz": gpu.clock_mhz(), "reasons": gpu.throttle_reasons(),
    "limits_w": [*gpu.power_limits_w(), before_w, gpu.power_limit_w(), gpu.default_power_limit_w()],
    "profiles": offered,
    "energy_j": gpu.energy_j(), "temperature_c": gpu.temperature_c(),
}))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the library, under the name by which NVIDIA's is found."""
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run([COMPILER, "-shared", "-fPIC", SOURCE, "-o", folder / "libnvidia-ml.so.1"], check=True)
    return folder


def python(driver: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    hidden = {"CUDA_VISIBLE_DEVICES", "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    paths = {"LD_LIBRARY_PATH": str(driver), FOLDER_VARIABLE: str(driver / "claims")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=kept | paths | environment, capture_output=True, text=True, check=False)


def test_every_call_reaches_the_driver_with_its_types_and_units(driver: Path) -> None:
    done = python(driver, "-c", READ)
    assert json.loads(done.stdout) == {
        "uuid": "GPU-8f6c",
        "name": "NVIDIA Made-Up",
        "driver": "580.95.05",
        "clocks_mhz": [210, 1395, 1410],
        "locked_mhz": 1395,
        "clock_mhz": 1410,
        "reasons": ["power-limit", "thermal-limit"],
        "limits_w": [100.0, 400.0, 400.0, 300.5, 400.0],
        "profiles": [["max-q", "llm-training"], ["max-q", "llm-training"], ["max-q"], ["llm-training"]],
        "energy_j": 7_000_000_012.345,
        "temperature_c": 61.0,
    }
    assert done.stderr == ""


def test_an_older_driver_is_asked_for_temperature_the_older_way(driver: Path) -> None:
    old = json.loads(python(driver, "-c", READ, OLD="1").stdout)
    assert (old["temperature_c"], old["profiles"]) == (57.0, [])


def test_a_driver_that_wants_rights_is_told_in_one_line(driver: Path) -> None:
    script = "from kareus.cli import main; raise SystemExit(main(['clocks', 'show']))"
    shown = python(driver, "-c", script, FORBIDDEN="1")
    assert shown.stdout.startswith("0  NVIDIA Made-Up  GPU-8f6c  now 1410 MHz (power-limit, thermal-limit), ")
    assert "from 210 to 1410 MHz; " in shown.stdout
    refused = python(driver, "-c", READ, FORBIDDEN="1")
    assert refused.stderr.splitlines()[-1].startswith("kareus.errors.DeviceError: GPU 0: no right ")


def test_gpus_may_be_named_by_uuid_as_kubernetes_does(driver: Path) -> None:
    opened = json.loads(python(driver, "-c", READ).stdout)
    for name in ("GPU-8f6c", "GPU-8f"):
        assert json.loads(python(driver, "-c", READ, CUDA_VISIBLE_DEVICES=name).stdout) == opened


@pytest.mark.parametrize(
    ("visible", "line"),
    [
        ("GPU-77", "CUDA_VISIBLE_DEVICES: GPU-77 names 0 GPUs of this machine; must name one of GPU-8f6c."),
        (
            "GPU-8f6c,0",
            "CUDA_VISIBLE_DEVICES=GPU-8f6c,0: must list indices such as 0,1 or UUIDs such as GPU-8f6c..., all of one "
            "kind; `nvidia-smi -L` prints both.",
        ),
        *(
            (
                visible,
                f"{visible.split(',')[-1]}: is a MIG slice, which shares clock and energy counter with the other "
                "slices of its GPU; use whole GPUs (`nvidia-smi -mig 0` as root), or plan on the simulated testbed.",
            )
            for visible in ("MIG-41c2", "MIG-GPU-8f6c/1/0", "GPU-8f6c,MIG-41c2")
        ),
    ],
)
def test_what_names_no_whole_gpu_is_told_in_one_line(driver: Path, visible: str, line: str) -> None:
    refused = python(driver, "-c", READ, CUDA_VISIBLE_DEVICES=visible)
    assert refused.stderr.splitlines()[-1] == f"kareus.errors.DeviceError: {line}"
