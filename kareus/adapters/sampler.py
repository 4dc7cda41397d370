"""A GPU's energy counter and SM clock over time, read by a thread beside a training."""

import bisect
import logging
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Self

import numpy as np

from kareus.device.held_clock import ClockReading
from kareus.device.protocol import Device
from kareus.errors import DeviceError

PERIOD_S = 0.025
"""Between two readings. The driver updates the energy counter about every 0.1 s, and a reading takes tens of
microseconds of the interpreter, which the training waits for."""
STANDING_S = 5.0
"""Without a movement, after which a counter stands still: that of a GPU at rest moves several times a second."""
CLOSING_S = 0.3
"""Longest wait at the end for the movement that covers the last iteration."""

logger = logging.getLogger(__name__)


class Sampler:
    """Readings of one GPU, from `start` to `close`. Times are those of `time.perf_counter`."""

    def __init__(self, device: Device) -> None:
        """Read `device`."""
        self._device = device
        self._lock = threading.Lock()
        self._energies: list[tuple[float, float]] = []
        """Time and energy, whenever the counter was seen to have moved."""
        self._clocks: list[ClockReading] = []
        self._names_reasons = True
        """Whether the driver says why a clock is low; some virtual GPUs do not."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)

    def start(self) -> Self:
        """Begin."""
        self._read()
        self._thread.start()
        return self

    def close(self) -> None:
        """Wait until the energy until now is known, but not for long, and end."""
        now_s = time.perf_counter()
        while not self.covers(now_s) and time.perf_counter() < now_s + CLOSING_S:
            time.sleep(PERIOD_S)
        self._ending.set()
        self._thread.join()

    def covers(self, end_s: float) -> bool:
        """Whether the energy until `end_s` is known, as the counter has moved since, or never will be."""
        with self._lock:
            is_known = self._energies[-1][0] >= end_s
        return is_known or not self._thread.is_alive() or time.perf_counter() - end_s > STANDING_S

    def energies_j(self, starts_s: Sequence[float], ends_s: Sequence[float]) -> list[float | None]:
        """Return the energy between each start and end, interpolated between movements of the counter.

        It is None for what ended after the last of them.
        """
        with self._lock:
            times_s, energies_j = zip(*self._energies, strict=True)
        at_ends, at_starts = (np.interp(at_s, times_s, energies_j) for at_s in (ends_s, starts_s))
        covered = [end_s <= times_s[-1] for end_s in ends_s]
        return [float(spent) if ok else None for ok, spent in zip(covered, at_ends - at_starts, strict=True)]

    def movements(self, start_s: float, end_s: float) -> tuple[tuple[float, float], ...]:
        """Return when the counter moved in a time, from the start of that, and the energy that it then showed.

        It moved half a period before that was seen, on average.
        """
        with self._lock:
            first = bisect.bisect_left(self._energies, (start_s, 0.0))
            last = bisect.bisect_right(self._energies, (end_s, float("inf")))
            return tuple((s - PERIOD_S / 2 - start_s, energy_j) for s, energy_j in self._energies[first:last])

    def last_clock_mhz(self, start_s: float, end_s: float) -> int | None:
        """Return the SM clock that was read last in a time; None if none was."""
        read = self._clocks_in(start_s, end_s)
        return read[-1][1] if read else None

    def median_clock_mhz(self, start_s: float, end_s: float) -> int | None:
        """Return the median of the SM clocks that were read in a time; None if none was."""
        read = self._clocks_in(start_s, end_s)
        return int(statistics.median_high(mhz for _, mhz, _ in read)) if read else None

    def readings(self, start_s: float, end_s: float) -> tuple[ClockReading, ...]:
        """Return the readings of the SM clock in a time, in seconds from its start."""
        return tuple((at_s - start_s, mhz, reasons) for at_s, mhz, reasons in self._clocks_in(start_s, end_s))

    def forget(self, before_s: float) -> None:
        """Drop readings that no time from `before_s` on needs."""
        with self._lock:
            first = max(bisect.bisect_right(self._energies, (before_s, float("inf"))) - 1, 0)
            del self._energies[:first]
            del self._clocks[: bisect.bisect_left(self._clocks, before_s, key=_at_s)]

    def _clocks_in(self, start_s: float, end_s: float) -> list[ClockReading]:
        with self._lock:
            first = bisect.bisect_left(self._clocks, start_s, key=_at_s)
            return self._clocks[first : bisect.bisect_right(self._clocks, end_s, key=_at_s)]

    def _run(self) -> None:
        while not self._ending.wait(PERIOD_S):
            if not self._try_read():
                return

    def _try_read(self) -> bool:
        try:
            self._read()
        except DeviceError as error:
            logger.warning("%s Energy and clocks are not recorded from here on.", error)
            return False
        return True

    def _read(self) -> None:
        energy_j, clock_mhz = self._device.energy_j(), self._device.clock_mhz()
        reasons, now_s = self._reasons(), time.perf_counter()
        with self._lock:
            if not self._energies or energy_j > self._energies[-1][1]:
                self._energies.append((now_s, energy_j))
            self._clocks.append((now_s, clock_mhz, reasons))

    def _reasons(self) -> tuple[str, ...]:
        try:
            return self._device.throttle_reasons() if self._names_reasons else ()
        except DeviceError as error:
            logger.warning("%s Why its clock is low is not known.", error)
            self._names_reasons = False
            return ()


def _at_s(reading: ClockReading) -> float:
    return reading[0]
