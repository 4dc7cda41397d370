"""Thermally stable measurement of one program at one clock (paper, sections 5.3 and 6.7).

Warm up and time one execution, cool down, then execute over a window that is long against the update
interval of the energy counter. The same code serves simulated and real testbeds.

Energy needs all of that; time is known once the program is warm. A look ends there and costs a tenth.
"""

import functools
import math
from dataclasses import dataclass

from kareus.artifacts import records
from kareus.artifacts.store import Shelf
from kareus.artifacts.tables import Row
from kareus.graph.program import Program, Step
from kareus.profile.config import MeasurementProtocol
from kareus.testbed.protocol import Session, Testbed


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured cost."""

    time_s: float
    energy_j: float
    """Of one GPU."""
    duration_s: float
    """Testbed's clock spent to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The time of one execution, seen without measuring energy."""

    time_s: float
    duration_s: float
    """Testbed's clock spent to get it."""


@functools.lru_cache(maxsize=8)
def _identity_of(steps: tuple[Step, ...], blocks: tuple[int, int] | None) -> str:
    return records.content_hash((steps, blocks))


def identity_of(program: Program) -> str:
    """Hash of what a program executes; its name is not part of it."""
    return _identity_of(program.steps, program.blocks)


class Profiler:
    """Measures programs, keeping every result on one shelf of the durable store."""

    def __init__(self, testbed: Testbed, protocol: MeasurementProtocol, shelf: Shelf) -> None:
        """Measure on `testbed`; `shelf` is open and shared by all that one job measures."""
        self._testbed = testbed
        self._protocol = protocol
        self._shelf = shelf
        self._measured = 0
        self._reused = 0

    @property
    def tally(self) -> str:
        """How much was measured and how much the store already had, for a log line."""
        return f"{self._measured} measured, {self._reused} from the store"

    def measure(self, program: Program, frequency_mhz: int, repeat: int = 0) -> Measurement:
        """Return the cost of `program`, measuring it only if the store does not have it."""
        identity = identity_of(program)
        row = self._shelf.get((identity, frequency_mhz, repeat))
        if row is None:
            key: Row = {"program": identity, "frequency_mhz": frequency_mhz, "repeat": repeat}
            with self._testbed.session(program, records.canonical_json(key)) as session:
                row = key | {"name": program.name} | measure_once(session, frequency_mhz, self._protocol)
            self._shelf.append(row)
            self._measured += 1
        else:
            self._reused += 1
        return Measurement(time_s=row["time_s"], energy_j=row["energy_j"], duration_s=row["duration_s"])


class Looker:
    """Looks at programs, keeping every result on one shelf of the durable store."""

    def __init__(self, testbed: Testbed, protocol: MeasurementProtocol, shelf: Shelf) -> None:
        """Look at what runs on `testbed`; `shelf` is open and shared by all that one job looks at."""
        self._testbed = testbed
        self._protocol = protocol
        self._shelf = shelf
        self._looked = 0
        self._reused = 0

    @property
    def tally(self) -> str:
        """How many looks were taken and how many the store already had, for a log line."""
        return f"{self._looked} taken, {self._reused} from the store"

    def look(self, program: Program, frequency_mhz: int) -> Look:
        """Return the time of `program`, looking only if the store does not have it."""
        identity = identity_of(program)
        row = self._shelf.get((identity, frequency_mhz))
        if row is None:
            key: Row = {"program": identity, "frequency_mhz": frequency_mhz}
            with self._testbed.session(program, records.canonical_json(key | {"look": True})) as session:
                row = key | {"name": program.name} | look_once(session, frequency_mhz, self._protocol)
            self._shelf.append(row)
            self._looked += 1
        else:
            self._reused += 1
        return Look(time_s=row["time_s"], duration_s=row["duration_s"])


def look_once(session: Session, frequency_mhz: int, protocol: MeasurementProtocol) -> Row:
    """Look at the session's program; returns the columns of `LOOKS` that looking fills."""
    begin_s = session.now_s()
    session.set_clock(frequency_mhz)
    time_s = _warm_up(session, protocol.warmup_s)
    clock = session.clock_report()
    return {
        "time_s": time_s,
        "clock_mean_mhz": clock.mean_mhz,
        "throttle_reasons": list(clock.throttle_reasons),
        "duration_s": session.now_s() - begin_s,
    }


def measure_once(session: Session, frequency_mhz: int, protocol: MeasurementProtocol) -> Row:
    """Measure the session's program; returns the columns of `MEASUREMENTS` that measuring fills."""
    begin_s = session.now_s()
    session.set_clock(frequency_mhz)
    execution_s = _warm_up(session, protocol.warmup_s)
    idle_w = _cool_down(session, protocol)

    repetitions = max(1, math.ceil(protocol.window_s / execution_s))
    temperature_before_c = session.temperature_c()
    start_j, start_s = session.energy_j(), session.now_s()  # real instruments take milliseconds to read
    session.execute(repetitions)
    window_s, temperature_after_c, clock = session.now_s() - start_s, session.temperature_c(), session.clock_report()
    session.rest(protocol.settle_s)
    energy_j = session.energy_j() - start_j - idle_w * protocol.settle_s
    return {
        "time_s": window_s / repetitions,
        "energy_j": energy_j / repetitions,
        "repetitions": repetitions,
        "window_s": window_s,
        "temperature_before_c": temperature_before_c,
        "temperature_after_c": temperature_after_c,
        "clock_mean_mhz": clock.mean_mhz,
        "throttle_reasons": list(clock.throttle_reasons),
        "duration_s": session.now_s() - begin_s,
    }


def _cool_down(session: Session, protocol: MeasurementProtocol) -> float:
    """Rest; returns the idle power in watts.

    A counter is as old as its update interval. Read while the GPU idles, before as after the window, what it misses is
    idle power, which is known; read at the end of the load, it misses up to 2 % of a window of 5 s.
    """
    session.rest(protocol.settle_s)
    start_s, start_j = session.now_s(), session.energy_j()
    session.rest(max(protocol.cooldown_s, protocol.settle_s))
    elapsed_s = session.now_s() - start_s
    return (session.energy_j() - start_j) / elapsed_s if elapsed_s else 0.0


def _warm_up(session: Session, warmup_s: float) -> float:
    """Execute for about `warmup_s`; returns the time of one execution."""
    start_s = session.now_s()
    session.execute(1)
    first_s = session.now_s() - start_s
    repetitions = max(1, math.ceil(warmup_s / first_s))
    start_s = session.now_s()
    session.execute(repetitions)
    return (session.now_s() - start_s) / repetitions
