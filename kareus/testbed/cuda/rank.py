"""One GPU of a group: the program on it, its clock, and its instruments."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kareus.artifacts.records import from_plain
from kareus.device.controller import ClockController, controlled_clocks
from kareus.device.held_clock import IDLE
from kareus.device.protocol import Device
from kareus.errors import DeviceError
from kareus.graph.records import Program
from kareus.testbed.config import ClockPolicy
from kareus.testbed.cuda.executor import Executor

_SAMPLE_S = 0.02
"""Interval at which the clock is sampled: NVML's own values change at about this rate."""
ClockSample = tuple[float, frozenset[str]]
"""Clock in MHz, and the driver's reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Readings of the instruments."""

    energy_j: float
    temperature_c: float
    clock_mean_mhz: float
    """Mean SM clock over the last execution."""
    throttle_reasons: tuple[str, ...]
    """Reasons reported during the last execution."""


class Rank:
    """Answers what `kareus.testbed.cuda.worker` is asked; arguments and answers are plain data."""

    def __init__(self, device: Device, policy: ClockPolicy, executor: Callable[[Program], Executor]) -> None:
        """Run programs on `device`, which `executor` prepares them for."""
        self._device = device
        self._policy = policy
        self._prepare = executor
        self._claimed = contextlib.ExitStack()
        self._clocks: ClockController | None = None
        self._executor: Executor | None = None
        self._program = ""
        self._samples: list[ClockSample] = [(float(device.clock_mhz()), frozenset())]

    def identify(self) -> str:
        """UUID of the GPU."""
        return self._device.uuid

    def claim(self) -> None:
        """Claim the GPU; wait until its current owner releases it."""
        self._clocks = self._claimed.enter_context(controlled_clocks(self._device, patience_s=math.inf))

    def load(self, program: Any) -> None:
        """Prepare a program.

        Raises:
            DeviceError: it does not fit into the GPU's memory.
        """
        loaded = from_plain(Program, program)
        with self._fitting(loaded.name):
            self._executor = self._prepare(loaded)
        self._program = loaded.name

    def set_clock(self, frequency_mhz: int) -> None:
        """Lock the clock, or check that it is the one that the driver leaves alone.

        Raises:
            DeviceError: it is another, or the driver refuses.
        """
        assert self._clocks is not None
        if self._policy is ClockPolicy.LOCKED:
            self._clocks.request(frequency_mhz).result()
        elif frequency_mhz != self._device.supported_clocks_mhz()[-1]:
            raise DeviceError(
                f"{self._device.uuid}: asked for {frequency_mhz} MHz, but testbed.cuda.clocks=default leaves clocks "
                "alone; only the maximum can be measured so."
            )

    def execute(self, repetitions: int) -> None:
        """Run the program, and sample the SM clock while it runs.

        Raises:
            DeviceError: what collectives and attention return does not fit into the GPU's memory, or the driver does
                not tell the clock.
        """
        assert self._executor is not None
        ended, unread = threading.Event(), list[DeviceError]()
        self._samples = []
        sampler = threading.Thread(target=self._sample, args=(ended, unread))
        sampler.start()
        try:
            with self._fitting(self._program):
                self._executor.run(repetitions)
        finally:
            ended.set()
            sampler.join()
        if unread:
            raise unread[0]

    def read(self) -> Reading:
        """Read the instruments."""
        clocks, reasons = zip(*_under_load(self._samples), strict=True)
        return Reading(
            energy_j=self._device.energy_j(),
            temperature_c=self._device.temperature_c(),
            clock_mean_mhz=sum(clocks) / len(clocks),
            throttle_reasons=tuple(sorted(frozenset().union(*reasons) - {IDLE})),
        )

    def release(self) -> None:
        """Release the program, the clock and the GPU."""
        self._executor = None
        self._claimed.close()
        self._clocks = None

    close = release
    """So that leaving `contextlib.closing` lets go of everything."""

    @contextlib.contextmanager
    def _fitting(self, program: str) -> Iterator[None]:
        """Report in one line that a program does not fit into memory."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{self._device.uuid}: {program} does not fit into the memory of {self._device.name}; end other "
                "processes on it, or plan a smaller microbatch."
            ) from error

    def _sample(self, ended: threading.Event, unread: list[DeviceError]) -> None:
        """Sample the SM clock, from a thread, until the execution has ended; why it cannot be read goes to `unread`."""
        while True:
            try:
                self._samples.append((float(self._device.clock_mhz()), frozenset(self._device.throttle_reasons())))
            except DeviceError as error:
                unread.append(error)
                return
            if ended.wait(_SAMPLE_S):
                return


def _under_load(samples: list[ClockSample]) -> list[ClockSample]:
    """Return the samples that tell of a program: not the first, which precedes its kernels, nor those of an idle GPU.

    All count where no other is left, as of a short program.
    """
    loaded = [sample for sample in samples[1:] if IDLE not in sample[1]]
    return loaded or samples
