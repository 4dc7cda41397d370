"""Idle and sustained power: how a GPU heats up under load and cools down, and what it draws with nothing to do.

One session runs a large GEMM for a while and then rests, and reads temperature and energy every second. Leakage is how
idle power falls while the chip cools; resistance is by how much more power makes it warmer; the time constant is that
of cooling. Power is referred to the reference temperature of the GPU's file.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from kareus.arrays import Array
from kareus.artifacts.store import RowShelf
from kareus.artifacts.tables import Column, Row, TableSchema
from kareus.calibrate.probes import gemm
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.thermal import of_profiles, with_numbers
from kareus.graph.records import Program, Step
from kareus.profile.config import MeasurementProtocol
from kareus.testbed.protocol import Session, Testbed

LOAD = Program(name="sustained load", steps=(Step(operators=(gemm("probe", (8192, 8192, 8192)),)),))
STEP_S = 1.0
"""Time between two readings: a multiple of the counter's update interval."""
STEPS = 20
"""Readings under load, and as many at rest."""
LEAST_RANGE_C = 3.0
"""Range of temperatures at rest below which they tell nothing: sensors show whole degrees."""
MOST_FEEDBACK = 0.9
"""Largest share of a degree that leaks back as heat; at 1 the chip would run away."""

HEAT_READINGS = TableSchema(
    name="heat_readings",
    version=1,
    meaning="Temperature and energy of one GPU, read every second under a sustained load and then at rest.",
    columns=(
        Column("reading", pl.Int64, "number of the reading, from 0"),
        Column("loaded", pl.Boolean, "whether the GPU worked since the reading before"),
        Column("elapsed_s", pl.Float64, "time of the reading on the testbed's clock"),
        Column("energy_j", pl.Float64, "reading of the energy counter"),
        Column("temperature_c", pl.Float64, "temperature of the chip"),
    ),
    key=("reading",),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """What readings say; a number is None where they do not tell it."""

    idle_w: float
    """Mean power at rest, at the temperatures that it had."""
    sustained_w: float
    """Mean power in the second half of the load."""
    static_power_w: float | None
    """Power at rest, at the reference temperature of the GPU's file."""
    coefficients: dict[str, float]
    """Those of leakage and heat, by name; empty if they are not told."""

    def applied(self, gpu: Gpu) -> Gpu:
        """Return `gpu` with what is told."""
        static_power_w = gpu.static_power_w if self.static_power_w is None else self.static_power_w
        return with_numbers(gpu, static_power_w, self.coefficients)


def heat_readings(
    testbed: Testbed, protocol: MeasurementProtocol, frequency_mhz: int, shelf: RowShelf
) -> tuple[list[Row], bool]:
    """Return the readings, all from the shelf if it has all, else all read now; and whether they were read now.

    Args:
        testbed: where to read.
        protocol: how long to rest before the first reading.
        frequency_mhz: clock of the load.
        shelf: shelf of `HEAT_READINGS`.
    """
    stored = [row for reading in range(2 * STEPS + 2) if (row := shelf.get((reading,))) is not None]
    if len(stored) == 2 * STEPS + 2:
        return stored, False
    with testbed.session(LOAD, "heat") as session:
        session.set_clock(frequency_mhz)
        session.execute(1)
        rows = list(_read(session, protocol))
    for row in rows:
        shelf.append(row)
    return rows, True


def _read(session: Session, protocol: MeasurementProtocol) -> list[Row]:
    """Read under load and at rest; each part begins with a reading that ends what was before it."""
    start_s = session.now_s()
    session.execute(3)
    execution_s = (session.now_s() - start_s) / 3
    session.rest(protocol.settle_s)
    rows = list[Row]()

    def read(*, loaded: bool) -> None:
        rows.append({
            "reading": len(rows),
            "loaded": loaded,
            "elapsed_s": session.now_s(),
            "energy_j": session.energy_j(),
            "temperature_c": session.temperature_c(),
        })  # fmt: skip

    read(loaded=False)
    for _ in range(STEPS):
        session.execute(max(1, math.ceil(STEP_S / execution_s)))
        read(loaded=True)
    session.rest(protocol.settle_s)  # what the counter was late with at the end of the load
    read(loaded=False)
    for _ in range(STEPS):
        session.rest(STEP_S)
        read(loaded=False)
    return rows


def heat_of(rows: Sequence[Row], gpu: Gpu) -> Heat:
    """Return what readings say of a GPU like `gpu`, whose file has the reference temperature."""
    elapsed_s, energy_j, temperature_c = (
        np.array([row[name] for row in rows]) for name in ("elapsed_s", "energy_j", "temperature_c")
    )
    rest = slice(STEPS + 1, None)
    under_load = slice(STEPS // 2, STEPS + 1)
    idle_w, sustained_w = (_mean_w(elapsed_s[part], energy_j[part]) for part in (rest, under_load))
    cooling = _Cooling(elapsed_s[rest], energy_j[rest], temperature_c[rest])
    if np.ptp(cooling.temperature_c) < LEAST_RANGE_C:
        return Heat(idle_w=idle_w, sustained_w=sustained_w, static_power_w=None, coefficients={})
    leakage_w_per_c, at_zero_w = cooling.leakage()
    static_power_w = at_zero_w + leakage_w_per_c * of_profiles(gpu).coefficients.reference_temperature_c
    coldest_c, rate = cooling.settling()
    left = math.exp(-rate * float(elapsed_s[STEPS] - elapsed_s[0]))  # of the way to the temperature under load
    hottest_c = float(temperature_c[STEPS] - temperature_c[0] * left) / (1 - left)
    # Powers at the temperatures that the chip would settle to.
    hottest_w = sustained_w + leakage_w_per_c * (hottest_c - float(temperature_c[under_load].mean()))
    resistance = (hottest_c - coldest_c) / (hottest_w - at_zero_w - leakage_w_per_c * coldest_c)
    feedback = resistance * leakage_w_per_c
    if not (leakage_w_per_c > 0 and static_power_w > 0 and resistance > 0 and rate > 0 and feedback < MOST_FEEDBACK):
        return Heat(idle_w=idle_w, sustained_w=sustained_w, static_power_w=None, coefficients={})
    return Heat(
        idle_w=idle_w,
        sustained_w=sustained_w,
        static_power_w=static_power_w,
        coefficients={
            "leakage_w_per_c": leakage_w_per_c,
            "thermal_resistance_c_per_w": resistance,
            "thermal_time_s": (1 - feedback) / rate,
        },
    )


def _mean_w(elapsed_s: Array, energy_j: Array) -> float:
    return float((energy_j[-1] - energy_j[0]) / (elapsed_s[-1] - elapsed_s[0]))


@dataclass(frozen=True, slots=True)
class _Cooling:
    """Readings at rest."""

    elapsed_s: Array
    energy_j: Array
    temperature_c: Array

    def leakage(self) -> tuple[float, float]:
        """Growth of idle power with temperature, in W per degC, and idle power at 0 degC.

        Energies since the start are fitted, which err by the counter's delay once and not at every reading.
        """
        duration_s = self.elapsed_s - self.elapsed_s[0]
        coldest_c, rate = self.settling()
        above_c = self.temperature_c[0] - coldest_c
        degree_seconds = coldest_c * duration_s + above_c * -np.expm1(-rate * duration_s) / rate
        unknown = np.stack([degree_seconds, duration_s], axis=1)
        (leakage_w_per_c, at_zero_w), *_ = np.linalg.lstsq(unknown, self.energy_j - self.energy_j[0], rcond=None)
        return float(leakage_w_per_c), float(at_zero_w)

    def settling(self) -> tuple[float, float]:
        """Temperature that the chip settles to, and the rate at which it does, by an exponential."""
        from scipy.optimize import least_squares  # noqa: PLC0415 - only fitting needs it

        duration_s, first_c = self.elapsed_s - self.elapsed_s[0], self.temperature_c[0]

        def errors(unknown: Array) -> Array:
            coldest_c, log_rate = unknown
            later: Array = coldest_c + (first_c - coldest_c) * np.exp(-np.exp(log_rate) * duration_s)
            return later - self.temperature_c

        coldest_c, log_rate = least_squares(errors, [self.temperature_c.min(), 0.0]).x
        return float(coldest_c), math.exp(log_rate)
