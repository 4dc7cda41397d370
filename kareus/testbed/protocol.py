"""The protocol between the profiler and a testbed, simulated or real; opening one."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from kareus.artifacts.provenance import TestbedIdentity
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Program
from kareus.testbed.config import TestbedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReport:
    """What the SM clock did since it was set."""

    mean_mhz: float
    """Mean over the time under load, of the GPU that is farthest from what was asked for."""
    throttle_reasons: tuple[str, ...]
    """Why it fell below what was asked for, such as `power-limit`; empty if it did not."""


class Session(Protocol):
    """One program loaded on the GPUs of its group, with their clock and instruments at hand.

    Readings are of one GPU, the mean over the group. Time is the testbed's own, virtual if simulated.
    """

    def set_clock(self, frequency_mhz: int) -> None:
        """Lock the SM clock and wait until it holds."""

    def execute(self, repetitions: int) -> None:
        """Run the program that often, back to back, and wait for its end."""

    def rest(self, duration_s: float) -> None:
        """Leave the GPUs idle."""

    def now_s(self) -> float:
        """Reading of the testbed's clock."""

    def energy_j(self) -> float:
        """Reading of the energy counter, as old as its update interval."""

    def temperature_c(self) -> float:
        """Temperature of the GPU."""

    def begin_trial(self) -> None:
        """Begin another measurement where the one before left the GPU, as hot as it is."""

    def clock_report(self) -> ClockReport:
        """What the clock did since `set_clock`."""


class Testbed(Protocol):
    """Something that can run programs."""

    @property
    def identity(self) -> TestbedIdentity:
        """Identity of the testbed in provenance."""

    def session(self, program: Program, measurement: str) -> AbstractContextManager[Session]:
        """Load `program`.

        Args:
            program: what `execute` will run.
            measurement: identity of what will be measured. A simulated testbed draws its noise from it, so that
                a measurement does not depend on what was measured before.
        """


def open_testbed(config: TestbedConfig, gpu: Gpu, predecessor_power_w: float, seed: int) -> Testbed:
    """Return the testbed of `config.kind`; only that kind is imported.

    Args:
        config: which testbed, and its instruments.
        gpu: the GPU that is measured, or simulated.
        predecessor_power_w: power of what ran on a simulated GPU before each measurement.
        seed: of the noise of a simulated testbed.

    Raises:
        DeviceError: real GPUs are asked for and there are none, or others.
    """
    if config.cuda is not None:
        from kareus.device import nvml  # noqa: PLC0415
        from kareus.testbed.cuda.testbed import CudaTestbed  # noqa: PLC0415

        return CudaTestbed(config.cuda, gpu, nvml.open_devices())
    from kareus.testbed.simulated_testbed import SimulatedTestbed  # noqa: PLC0415

    return SimulatedTestbed(config=config, gpu=gpu, predecessor_power_w=predecessor_power_w, seed=seed)
