"""Measuring the trials of a calibration, one after the other, until its time is spent.

Everything goes through the profiler and the store: a killed calibration continues, and nothing is measured twice. The
time that stored measurements took counts, so that a run that continues ends where an uninterrupted one would have.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kareus.artifacts.store import RowShelf
from kareus.artifacts.tables import Row
from kareus.calibrate.design import CalibrationTrial
from kareus.calibrate.heat import HEAT_READINGS, heat_readings
from kareus.calibrate.observations import ObservedProbe, observed
from kareus.profile.bench import Bench
from kareus.profile.config import MeasurementProtocol
from kareus.profile.measure import Profiler, identity_of
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.testbed.protocol import Testbed

SUBJECT = "calibration"
"""Name of the shelves."""
WINDOW_S, COOLDOWN_S, WARMUP_S = 2.0, 1.0, 0.5
"""Shorter than those of a search: many shapes tell more than few that are measured exactly. What is left of the heat
of the program before is corrected for by the temperatures of the window."""


@dataclass(frozen=True, slots=True)
class Shelves:
    """Where a calibration keeps what it measures."""

    measurements: RowShelf
    """Of `MEASUREMENTS`."""
    times: RowShelf
    """Of `LOOKS`."""
    heat: RowShelf
    """Of `HEAT_READINGS`."""


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured."""

    observations: list[ObservedProbe]
    heat: list[Row]
    spent_s: float
    """Time on the testbed's clock, that of stored measurements included."""
    reused: int
    """Measurements that the store already had."""


def short(protocol: MeasurementProtocol) -> MeasurementProtocol:
    """Return the protocol of a calibration."""
    return replace(protocol, window_s=WINDOW_S, cooldown_s=COOLDOWN_S, warmup_s=WARMUP_S)


@contextlib.contextmanager
def shelves_of(bench: Bench, store: Path) -> Iterator[Shelves]:
    """Open the shelves of a testbed's calibrations in the store."""
    schemas = (MEASUREMENTS, LOOKS, HEAT_READINGS)
    with contextlib.ExitStack() as opened:
        yield Shelves(*(opened.enter_context(bench.shelf(store, SUBJECT, SUBJECT, schema)) for schema in schemas))


def measure_trials(
    testbed: Testbed,
    protocol: MeasurementProtocol,
    shelves: Shelves,
    trials: Sequence[CalibrationTrial],
    budget_s: float,
    say: Callable[[int, float], None] = lambda _done, _spent_s: None,
) -> Measured:
    """Measure idle and sustained power, then trials in order until `budget_s` of the testbed's clock is spent.

    Args:
        testbed: where to measure.
        protocol: how.
        shelves: have what was measured before, and get what is.
        trials: the most telling first.
        budget_s: time after which no further trial begins.
        say: called with the number of trials done and the time that they took.
    """
    highest_mhz = max(trial.frequency_mhz for trial in trials)
    heat, _ = heat_readings(testbed, protocol, highest_mhz, shelves.heat)
    spent_s = heat[-1]["elapsed_s"] - heat[0]["elapsed_s"]
    profiler = Profiler(testbed, protocol, shelves.measurements, shelves.times)
    observations, reused = list[ObservedProbe](), 0
    for trial in trials:
        if spent_s >= budget_s:
            break
        is_stored, row = _row(profiler, shelves, trial)
        reused += is_stored
        spent_s += row["duration_s"]
        observations.append(observed(trial.probe, row))
        say(len(observations), spent_s)
    return Measured(observations, heat, spent_s, reused)


def _row(profiler: Profiler, shelves: Shelves, trial: CalibrationTrial) -> tuple[bool, Row]:
    """Row of a trial, and whether the store already had it."""
    program, frequency_mhz = trial.probe.program, trial.frequency_mhz
    key = (identity_of(program), frequency_mhz)
    shelf, whole_key = (shelves.measurements, (*key, 0)) if trial.with_energy else (shelves.times, key)
    is_stored = shelf.get(whole_key) is not None
    if trial.with_energy:
        profiler.measure(program, frequency_mhz)
    else:
        profiler.measure_time(program, frequency_mhz)
    row = shelf.get(whole_key)
    assert row is not None, "the profiler keeps what it measures"
    return is_stored, row
