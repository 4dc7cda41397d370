"""The machine as torch and the driver name it, and how good its instruments are; nothing is set."""

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from kareus.device.cuda import QUEUES
from kareus.device.protocol import Device
from onegpu.table import Table

CALLS = 50


def machine(device: Device, place: torch.device) -> Table:
    """Names and versions; torch's UUID of the GPU was found among the driver's, or there were no record."""
    rows: list[tuple[object, ...]] = [
        ("GPU", device.name),
        ("UUID by the driver", device.uuid),
        ("driver", device.driver),
        ("torch", torch.__version__),
        (QUEUES, os.environ.get(QUEUES, "not set")),
    ]
    if place.type == "cuda":
        properties = torch.cuda.get_device_properties(place)
        rows += [
            ("UUID by torch", properties.uuid),
            ("CUDA of torch", torch.version.cuda),
            ("compute capability", f"{properties.major}.{properties.minor}"),
            ("SMs", properties.multi_processor_count),
            ("memory, GiB", properties.total_memory / 2**30),
        ]
    if dist.is_nccl_available():
        rows.append(("NCCL", ".".join(map(str, torch.cuda.nccl.version()))))
    return Table("Machine", "As torch and the driver name it.", ("what", "is"), rows)


def instruments(device: Device, watched_s: float) -> Table:
    """How often the energy counter moves, what an idle GPU draws by it, and what a question to the driver takes."""
    clocks = device.supported_clocks_mhz()
    start_s, readings = time.perf_counter(), [device.energy_j()]
    while time.perf_counter() - start_s < watched_s:
        reading = device.energy_j()
        if reading != readings[-1]:
            readings.append(reading)
    elapsed_s = time.perf_counter() - start_s
    rows: list[tuple[object, ...]] = [
        ("clocks that can be locked, MHz", f"{clocks[0]} to {clocks[-1]}, {len(clocks)} of them"),
        ("clock now, MHz", device.clock_mhz()),
        ("what holds it down", ", ".join(device.throttle_reasons()) or "nothing"),
        ("temperature, C", device.temperature_c()),
        ("energy counter moves every, ms", 1e3 * elapsed_s / max(1, len(readings) - 1)),
        ("power of the idle GPU, W", (readings[-1] - readings[0]) / elapsed_s),
        *((f"one call of {name}, ms", taken_ms) for name, taken_ms in _calls(device)),
    ]
    return Table("Instruments", f"Read for {watched_s:g} s while nothing ran.", ("what", "is"), rows)


def _calls(device: Device) -> Iterator[tuple[str, float]]:
    for call in (device.clock_mhz, device.throttle_reasons, device.energy_j):
        start_s = time.perf_counter()
        for _ in range(CALLS):
            call()
        yield call.__name__, 1e3 * (time.perf_counter() - start_s) / CALLS
