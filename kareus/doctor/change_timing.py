"""Measurements of a change of clock: until when it holds, what stops meanwhile, how often it may come.

GPU files take changes as free until they are measured. Measuring locks clocks, so it is asked for (`kareus doctor
--measure`); however it ends, the clocks go back to the driver.
"""

import contextlib
import itertools
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kareus.device.controller import ClockController, controlled_clocks
from kareus.device.held_clock import CLOCK_STEP_MHZ, ClockOutcome, ClockReading, outcome_of_readings
from kareus.device.protocol import Device
from kareus.errors import DeviceError

SHARES = (0.6, 0.75, 0.9, 1.0)
"""Clocks between which changes are measured, as shares of the highest."""
ROUNDS = 3
SETTLED_S, PATIENCE_S, POLL_S = 0.3, 1.0, 0.001
PERIODS_S = (0.25, 0.1, 0.05)
"""Periods of locks under which collectives are timed; 50 ms delays them in NCCL's issue 1551."""
WATCHED_S, POWER_S = 3.0, 5.0
"""Time for collectives under each period and for the energy counter, and for the clock at the power limit."""
DELAYED = 0.02
"""Share by which the median collective may take longer under locks."""
START_S, ENDED_S = 120.0, 5.0
"""Time within which the load has to work, and to be gone once it is killed."""

SPAN = re.compile(r"([0-9.]+) ([0-9.]+)")
Span = tuple[float, float]
"""Start and end of a piece of work, by the machine's monotonic clock."""


class Load:
    """Work on some GPUs, by a process that says when each piece of it ran."""

    def __init__(self) -> None:
        """Know of no work yet."""
        self._spans: list[Span] = []

    def add(self, line: str) -> None:
        """Take a line of the process; one that is no piece of work, such as NCCL's log, is left out."""
        match = SPAN.fullmatch(line.strip())
        if match:
            self._spans.append((float(match[1]), float(match[2])))

    def spans(self, from_s: float, to_s: float) -> list[Span]:
        """Return the pieces that ran at some time from one moment to another."""
        return [span for span in list(self._spans) if span[1] >= from_s and span[0] <= to_s]

    def usual_s(self, from_s: float, to_s: float) -> float:
        """Return the median time of a piece of work between two moments.

        Raises:
            DeviceError: there was none: the load hangs.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not (spans := self.spans(from_s, to_s)):
            if time.monotonic() > deadline_s:
                raise DeviceError("the load has stopped; look at `nvidia-smi` and measure again.")
            time.sleep(POLL_S)
        return statistics.median(end_s - start_s for start_s, end_s in spans)

    @property
    def has_worked(self) -> bool:
        """Whether a piece is done."""
        return bool(self._spans)


StartLoad = Callable[[Sequence[int]], AbstractContextManager[Load]]
"""Starts work on the GPUs of these indices."""


@contextlib.contextmanager
def process_load(gpus: Sequence[int]) -> Iterator[Load]:
    """Work on GPUs by `kareus.doctor.load` until the context ends.

    Raises:
        DeviceError: it does not work, with the last line that it said.
    """
    command = [sys.executable, "-m", "kareus.doctor.load", ",".join(map(str, gpus))]
    load = Load()
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe that nobody reads would fill up, and stop the load
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as process,
    ):
        reader = threading.Thread(target=_read, args=(process, load), daemon=True)
        reader.start()
        try:
            deadline_s = time.monotonic() + START_S
            while not load.has_worked:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    errors.seek(0)
                    said = errors.read().strip().splitlines()
                    raise DeviceError(f"the load does not run on GPU {command[-1]}: {said[-1] if said else 'silent'}.")
                time.sleep(0.05)
            yield load
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its ranks, too
            reader.join(ENDED_S)


def _read(process: "subprocess.Popen[str]", load: Load) -> None:
    for line in process.stdout or ():
        load.add(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChangeTimes:
    """One change of a clock, under load."""

    from_mhz: int
    to_mhz: int
    accepted_s: float
    """Time that the driver took to accept it."""
    latency_s: float
    """Time from the request until the clock was read; infinite where it never was, or the former one was not."""
    pause_s: float
    """By how much the longest piece of work meanwhile exceeds the usual one, at the slower of both clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChanges:
    """What changes of clock do on a machine."""

    changes: tuple[ClockChangeTimes, ...]
    limit_mhz: float
    """Mean clock under load with the highest locked."""
    limit_outcome: ClockOutcome
    counter_period_s: float
    """Median time between two updates of the energy counter; infinite if it never moved."""
    counter_step_j: float
    """Least step of it."""
    delays: tuple[tuple[float, float], ...]
    """Periods of locks, and the share by which the median collective took longer; empty with one GPU."""

    @property
    def latency_s(self) -> float | None:
        """Median latency of the changes that came to hold; None if none did."""
        finite = [change.latency_s for change in self.changes if math.isfinite(change.latency_s)]
        return statistics.median(finite) if finite else None

    @property
    def pause_s(self) -> float:
        """Median pause."""
        return statistics.median(change.pause_s for change in self.changes)

    @property
    def lost(self) -> int:
        """Changes that never came to hold."""
        return sum(math.isinf(change.latency_s) for change in self.changes)

    @property
    def interval_s(self) -> float | None:
        """Shortest period of locks that does not delay collectives; None where nothing says so."""
        fine = [period_s for period_s, delay in self.delays if delay <= DELAYED]
        return min(fine, default=None)


def measured_changes(devices: Sequence[Device], start_load: StartLoad) -> MeasuredChanges:
    """Measure the first GPU, and collectives over the first two; clocks are restored however this ends.

    Raises:
        DeviceError: a GPU is in use, this user may not lock clocks, or the load does not run.
    """
    first = devices[0]
    with controlled_clocks(first) as clocks:
        with start_load([0]) as load:
            counter_period_s, counter_step_j = _energy_counter(first)
            mean_mhz, outcome = _at_the_limit(first, clocks)
            changes = tuple(_changes(first, clocks, load))
        delays = tuple(_delays(devices[:2], clocks, start_load)) if len(devices) > 1 else ()
    return MeasuredChanges(
        changes=changes,
        limit_mhz=mean_mhz,
        limit_outcome=outcome,
        counter_period_s=counter_period_s,
        counter_step_j=counter_step_j,
        delays=delays,
    )


def clocks_between(supported_mhz: Sequence[int]) -> list[int]:
    """Return the clocks between which changes are measured, ascending.

    Example:
        >>> clocks_between([600, 900, 1200, 1305, 1410])
        [900, 1200, 1305, 1410]
    """
    return sorted({min(supported_mhz, key=lambda mhz: abs(mhz - share * supported_mhz[-1])) for share in SHARES})


def _energy_counter(device: Device) -> tuple[float, float]:
    """Median period of the counter's updates in s, and its least step in J."""
    end_s = time.monotonic() + WATCHED_S
    updates: list[tuple[float, float]] = []
    while time.monotonic() < end_s:
        energy_j = device.energy_j()
        if not updates or energy_j != updates[-1][1]:
            updates.append((time.monotonic(), energy_j))
        time.sleep(POLL_S)
    steps = list(itertools.pairwise(updates[1:]))  # the first was under way
    if not steps:
        return math.inf, math.inf
    return statistics.median(b[0] - a[0] for a, b in steps), min(b[1] - a[1] for a, b in steps)


def _at_the_limit(device: Device, clocks: ClockController) -> tuple[float, ClockOutcome]:
    """Mean clock of the second half of a time under load, with the highest clock locked, and what became of it."""
    highest = device.supported_clocks_mhz()[-1]
    clocks.request(highest).result()
    begin_s, readings = time.monotonic(), list[ClockReading]()
    while not readings or readings[-1][0] < begin_s + POWER_S:  # the last is late enough, however busy the host is
        readings.append((time.monotonic(), device.clock_mhz(), device.throttle_reasons()))
        time.sleep(10 * POLL_S)
    settled = [reading for reading in readings if reading[0] >= begin_s + POWER_S / 2]
    return statistics.fmean(mhz for _, mhz, _ in settled), outcome_of_readings(highest, settled)


def _changes(device: Device, clocks: ClockController, load: Load) -> Iterator[ClockChangeTimes]:
    """Measure every change between clocks, several times."""
    targets = clocks_between(device.supported_clocks_mhz())
    for _ in range(ROUNDS):
        for from_mhz in targets:
            for to_mhz in targets:
                if from_mhz != to_mhz:
                    yield _change(device, clocks, load, from_mhz, to_mhz)


def _change(device: Device, clocks: ClockController, load: Load, from_mhz: int, to_mhz: int) -> ClockChangeTimes:
    clocks.request(from_mhz).result()
    began_s = _wait_for(device, from_mhz)
    time.sleep(SETTLED_S)
    asked_s = time.monotonic()
    clocks.request(to_mhz).result()
    accepted_s = time.monotonic()
    held_s = _wait_for(device, to_mhz)
    time.sleep(SETTLED_S)
    now_s = time.monotonic()
    usual_s = max(load.usual_s(asked_s - SETTLED_S, asked_s), load.usual_s(now_s - SETTLED_S / 2, now_s))
    meanwhile = load.spans(asked_s, asked_s + SETTLED_S if held_s is None else held_s)
    longest_s = max((end_s - start_s for start_s, end_s in meanwhile), default=usual_s)
    return ClockChangeTimes(
        from_mhz=from_mhz,
        to_mhz=to_mhz,
        accepted_s=accepted_s - asked_s,
        latency_s=math.inf if held_s is None or began_s is None else held_s - asked_s,
        pause_s=max(longest_s - usual_s, 0.0),
    )


def _wait_for(device: Device, mhz: int) -> float | None:
    """Return when the clock is read; None if it never is."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if abs(device.clock_mhz() - mhz) <= CLOCK_STEP_MHZ:
            return time.monotonic()
        time.sleep(POLL_S)
    return None


def _delays(devices: Sequence[Device], clocks: ClockController, start_load: StartLoad) -> Iterator[tuple[float, float]]:
    """By how much collectives over two GPUs take longer while both change between the two highest clocks.

    These are a step of the driver apart, which by itself changes nothing that could be seen.
    """
    with controlled_clocks(devices[1]) as others, start_load([0, 1]) as load:
        highest = devices[0].supported_clocks_mhz()[-2:]
        lower, higher = highest[0], highest[-1]

        def median_s(period_s: float | None) -> float:
            begin_s, turn = time.monotonic(), 0
            while time.monotonic() < begin_s + WATCHED_S:
                asked = [
                    controller.request((lower, higher)[turn % 2] if period_s else higher)
                    for controller in (clocks, others)
                ]
                for change in asked:
                    change.result()
                turn += 1
                time.sleep(max(begin_s + turn * (period_s or WATCHED_S) - time.monotonic(), 0.0))
            return load.usual_s(begin_s, time.monotonic())

        alone_s = median_s(None)
        for period_s in PERIODS_S:
            yield period_s, median_s(period_s) / alone_s - 1
