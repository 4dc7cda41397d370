"""Thermally stable measurement of one program at one clock (paper, sections 5.3 and 6.7).

Warm up and time one execution, cool down, then execute over a window that is long against the update
interval of the energy counter. The same code serves simulated and real testbeds.

Energy needs all of that; time is known once the program is warm. A time-only measurement ends there and costs a tenth.

A measurement counts at the clock that was asked for if the GPU ran at it, or if the power limit alone kept it below.
Else it is taken again after a longer rest, and refused in the end.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from kareus.artifacts import records
from kareus.artifacts.store import RowShelf
from kareus.artifacts.tables import Row
from kareus.device.held_clock import ClockOutcome, clock_outcome
from kareus.errors import DeviceError
from kareus.gpu_model.coefficients import GpuCoefficients
from kareus.gpu_model.thermal import window_temperature_c
from kareus.graph.records import Program, Step
from kareus.profile.config import MeasurementProtocol
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.testbed.protocol import Session, Testbed

COOLDOWNS = (6, 18)
"""Rests before the second and the third measurement, in cooldowns of the protocol: with its 5 s half a minute, and one
and a half. A chip alone cools within seconds (`thermal_time_s` of `config/gpu/`), what surrounds it more slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWindow:
    """The window of a measurement, and the temperatures of the GPU around it."""

    window_s: float
    before_c: float
    after_c: float

    def temperature_c(self, coefficients: GpuCoefficients) -> float:
        """Return the mean temperature over the window."""
        return window_temperature_c(self.before_c, self.after_c, self.window_s, coefficients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured cost."""

    time_s: float
    energy_j: float
    """Energy of one GPU."""
    duration_s: float
    """Time that passed on the testbed's clock."""
    window: MeasuredWindow | None = None
    """None where temperatures were not read."""
    is_power_limited: bool = False
    """Whether the power limit kept the GPU below the clock."""

    def temperature_c(self, coefficients: GpuCoefficients) -> float | None:
        """Return the mean temperature of the GPU while it was measured; None if it is not known."""
        return None if self.window is None else self.window.temperature_c(coefficients)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMeasurement:
    """The time of one execution, measured right after warming up, without its energy."""

    time_s: float
    duration_s: float
    """Time that passed on the testbed's clock."""


@functools.lru_cache(maxsize=64)  # a search comes back to the SM counts and launch operators of its partition
def _identity_of(steps: tuple[Step, ...], blocks: tuple[int, int] | None) -> str:
    return records.content_hash((steps, blocks))


def identity_of(program: Program) -> str:
    """Hash of what a program executes; its name is not part of it."""
    return _identity_of(program.steps, program.blocks)


class Profiler:
    """Measures programs on one testbed, keeping every result on a shelf and measuring nothing that is there."""

    def __init__(
        self, testbed: Testbed, protocol: MeasurementProtocol, measurements: RowShelf, times: RowShelf
    ) -> None:
        """Measure on `testbed`.

        Args:
            testbed: runs the programs.
            protocol: how they are measured.
            measurements: shelf of `MEASUREMENTS`, open and shared by all that one job measures.
            times: shelf of time-only measurements (`LOOKS`), likewise.
        """
        self._testbed = testbed
        self._protocol = protocol
        self._measurements = _Kept(measurements)
        self._times = _Kept(times)

    @property
    def tally(self) -> str:
        """Number of measurements made and of those that the store already had, for a log line."""
        return f"{self._measurements.taken} measured, {self._measurements.reused} from the store"

    @property
    def time_tally(self) -> str:
        """Number of time-only measurements made and of those that the store already had, for a log line."""
        return f"{self._times.taken} taken, {self._times.reused} from the store"

    def measure(self, program: Program, frequency_mhz: int, repeat: int = 0) -> Measurement:
        """Return the cost of `program`, measuring it only if the store does not have it."""
        key: Row = {"program": identity_of(program), "frequency_mhz": frequency_mhz, "repeat": repeat}

        def take() -> Row:
            with self._testbed.session(program, records.canonical_json(key)) as session:
                return {"name": program.name} | measured_row(measure_once, session, frequency_mhz, self._protocol)

        row = self._measurements.row(key, take)
        return Measurement(
            time_s=row["time_s"],
            energy_j=row["energy_j"],
            duration_s=row["duration_s"],
            window=MeasuredWindow(
                window_s=row["window_s"], before_c=row["temperature_before_c"], after_c=row["temperature_after_c"]
            ),
            is_power_limited=outcome_of(row, frequency_mhz) is ClockOutcome.POWER_LIMITED,
        )

    def measure_time(self, program: Program, frequency_mhz: int) -> TimeMeasurement:
        """Return the time of `program`, measuring it only if the store does not have it."""
        key: Row = {"program": identity_of(program), "frequency_mhz": frequency_mhz}

        def take() -> Row:
            with self._testbed.session(program, records.canonical_json(key | {"look": True})) as session:
                return {"name": program.name} | measured_row(measure_time_once, session, frequency_mhz, self._protocol)

        row = self._times.row(key, take)
        return TimeMeasurement(time_s=row["time_s"], duration_s=row["duration_s"])


def memory_profiler(testbed: Testbed, protocol: MeasurementProtocol) -> Profiler:
    """Return a profiler whose measurements last as long as it does."""
    return Profiler(testbed, protocol, RowShelf(MEASUREMENTS), RowShelf(LOOKS))


@dataclass(slots=True)
class _Kept:
    """A shelf, and how often it had what was asked for."""

    shelf: RowShelf
    taken: int = 0
    reused: int = 0

    def row(self, key: Row, take: Callable[[], Row]) -> Row:
        """Return the row of `key`; one that the shelf lacks, or has of another clock, is taken and added to it.

        Args:
            key: columns of the table's key, in the schema's order.
            take: measures the other columns.
        """
        kept = self.shelf.get(tuple(key.values()))
        if kept is not None and outcome_of(kept, key["frequency_mhz"]) is not ClockOutcome.LOST:
            self.reused += 1
            return kept
        row = key | take()
        self.shelf.append(row)
        self.taken += 1
        return row


def outcome_of(row: Row, frequency_mhz: int) -> ClockOutcome:
    """Return what became of the clock while a row of `MEASUREMENTS` or `LOOKS` was measured."""
    return clock_outcome(frequency_mhz, row["clock_mean_mhz"], row["throttle_reasons"])


def measured_row(
    take: Callable[[Session, int, MeasurementProtocol], Row],
    session: Session,
    frequency_mhz: int,
    protocol: MeasurementProtocol,
) -> Row:
    """Measure, again after a rest where the GPU ran at another clock; return the row that counts.

    Args:
        take: `measure_once` or `measure_time_once`.
        session: the session of the program.
        frequency_mhz: clock to measure at.
        protocol: phases of a measurement.

    Raises:
        DeviceError: the clock was not kept in any measurement, and not for the power limit alone.
    """
    for cooldowns in (*COOLDOWNS, None):
        row = take(session, frequency_mhz, protocol)
        if outcome_of(row, frequency_mhz) is not ClockOutcome.LOST:
            return row
        if cooldowns is not None:
            session.rest(cooldowns * protocol.cooldown_s)
    reasons = ", ".join(row["throttle_reasons"]) or "its driver names no reason"
    raise DeviceError(
        f"asked for {frequency_mhz} MHz and measured at {row['clock_mean_mhz']:.0f} MHz, {1 + len(COOLDOWNS)} times "
        f"({reasons}); see to the cooling and power of this machine and to who else sets its clocks (`nvidia-smi -q -d "
        "PERFORMANCE`), then run this again: what was measured before is kept."
    )


def measure_time_once(session: Session, frequency_mhz: int, protocol: MeasurementProtocol) -> Row:
    """Return the columns of `LOOKS` that measuring the time of the session's program fills."""
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
    """Return the columns of `MEASUREMENTS` that measuring the session's program fills."""
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
