"""The testbed of real GPUs: sessions whose readings come from workers."""

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Sequence

from kareus.artifacts.provenance import TestbedIdentity
from kareus.device.protocol import Device
from kareus.errors import DeviceError
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Collective, Program
from kareus.testbed.config import ClockPolicy, CudaCollectives, CudaConfig, GpuPool
from kareus.testbed.cuda.group import COMMAND, WorkerGroup
from kareus.testbed.protocol import ClockReport, Session


class CudaTestbed:
    """Implements `kareus.testbed.protocol.Testbed` on the NVIDIA GPUs of this machine."""

    def __init__(
        self, config: CudaConfig, gpu: Gpu, devices: Sequence[Device], command: Sequence[str] = COMMAND
    ) -> None:
        """Measure on the first of `devices`, as many as a program's groups have GPUs.

        Raises:
            DeviceError: they are not GPUs like `gpu`.
        """
        _check(devices[0], gpu, config.clocks)
        self._config = config
        self._devices = devices
        self._command = command
        self._axes: dict[str, int] = {}
        self._group: WorkerGroup | None = None

    @property
    def identity(self) -> TestbedIdentity:
        """Identity of the testbed: GPUs, driver, clocks and collectives."""
        used = self._devices[:1] if self._config.collectives is CudaCollectives.LOOPBACK else self._devices
        clocks = "locked clocks" if self._config.clocks is ClockPolicy.LOCKED else "default clocks, not locked"
        alike = self._config.pool is GpuPool.ALIKE
        which = "any of this model" if alike else ", ".join(device.uuid for device in used)
        detail = f"{which}; driver {used[0].driver}; {clocks}; collectives: {self._config.collectives}"
        return TestbedIdentity(kind="cuda", gpu=used[0].name, detail=detail)

    @contextlib.contextmanager
    def session(self, program: Program, measurement: str) -> Iterator[Session]:
        """Have the GPUs to ourselves, load `program`, and restore the clocks in the end."""
        group = self._workers(program)
        with group.claimed():
            group.call("load", program)
            yield CudaSession(group)

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _workers(self, program: Program) -> WorkerGroup:
        """The workers of the layout that `program` needs; those of the last program if it is the same."""
        axes = self._axes_of(program)
        if self._group is None or not self._group.alive or axes != self._axes:
            self.close()
            self._axes = axes
            self._group = WorkerGroup(self._config, axes, math.prod(axes.values()), self._command)
        return self._group

    def _axes_of(self, program: Program) -> dict[str, int]:
        if self._config.collectives is CudaCollectives.LOOPBACK:
            return {}
        axes = axes_of(
            [part.collective for step in program.steps for part in step.parts if part.collective is not None]
        )
        needed = math.prod(axes.values())
        if needed > len(self._devices):
            raise DeviceError(
                f"{program.name}: communicates among {needed} GPUs and this machine shows {len(self._devices)}; "
                "measure on a larger one, or set testbed.cuda.collectives=loopback."
            )
        return axes


class CudaSession:
    """Implements `kareus.testbed.protocol.Session`."""

    def __init__(self, group: WorkerGroup) -> None:
        """Speak to the workers of `group`."""
        self._group = group
        self._asked_mhz = 0

    def set_clock(self, frequency_mhz: int) -> None:
        """Lock the clock of every GPU.

        Raises:
            DeviceError: this user may not, or a GPU has no such clock.
        """
        try:
            self._group.call("set_clock", frequency_mhz)
            self._asked_mhz = frequency_mhz
        except DeviceError as error:
            raise DeviceError(f"{error} To measure at the driver's clock: testbed.cuda.clocks=default.") from error

    def execute(self, repetitions: int) -> None:
        """Run the program on every GPU."""
        self._group.call("execute", repetitions)

    def rest(self, duration_s: float) -> None:
        """Wait."""
        time.sleep(duration_s)

    def now_s(self) -> float:
        """Time of this process."""
        return time.perf_counter()

    def energy_j(self) -> float:
        """Mean of the GPUs' counters."""
        return self._mean("energy_j")

    def temperature_c(self) -> float:
        """Mean of the GPUs."""
        return self._mean("temperature_c")

    def begin_trial(self) -> None:
        """Nothing to do: no two measurements of a real GPU are alike."""

    def clock_report(self) -> ClockReport:
        """Clock that was sampled during the last execution on the GPU farthest from what was asked for; all reasons.

        The others wait for a GPU that is slow, which a mean over many would hide.
        """
        readings = self._group.call("read")
        reasons = {reason for reading in readings for reason in reading["throttle_reasons"]}
        clocks_mhz = [reading["clock_mean_mhz"] for reading in readings]
        farthest_mhz = max(clocks_mhz, key=lambda mhz: abs(mhz - self._asked_mhz))
        return ClockReport(mean_mhz=farthest_mhz, throttle_reasons=tuple(sorted(reasons)))

    def _mean(self, instrument: str) -> float:
        return statistics.fmean(reading[instrument] for reading in self._group.call("read"))


def axes_of(collectives: Sequence[Collective]) -> dict[str, int]:
    """Process groups that `collectives` communicate in, by name, and their sizes; `tp` before `cp`."""
    sizes = {collective.group: collective.group_size for collective in collectives}
    return dict(sorted(sizes.items(), reverse=True))


def _check(device: Device, gpu: Gpu, policy: ClockPolicy) -> None:
    """Check that `device` is a GPU like `gpu`, as far as its clocks tell."""
    supported = device.supported_clocks_mhz()
    if supported[-1] != gpu.maximum_clock_mhz:
        raise DeviceError(
            f"gpu={gpu.name}: has a maximum clock of {gpu.maximum_clock_mhz} MHz, and {device.name} has one of "
            f"{supported[-1]} MHz; choose the option of `gpu` that this machine has."
        )
    missing = [clock for clock in gpu.search_frequencies.clocks_mhz if clock not in supported]
    if missing and policy is ClockPolicy.LOCKED:
        raise DeviceError(
            f"gpu.search_frequencies: {device.name} has no clock of {missing[0]} MHz; choose a stride and a minimum "
            "among `nvidia-smi -q -d SUPPORTED_CLOCKS`."
        )
