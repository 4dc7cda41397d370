"""Calibrations of hidden simulated GPUs, without files."""

from collections.abc import Sequence
from dataclasses import dataclass

from helpers.builders import protocol, simulated
from kareus.artifacts.store import RowShelf
from kareus.calibrate.coefficients import expectations
from kareus.calibrate.design import clocks_of, ordered_trials
from kareus.calibrate.fit import Calibrated, calibrate
from kareus.calibrate.heat import HEAT_READINGS, heat_of
from kareus.calibrate.measure import Measured, Shelves, measure_trials, short
from kareus.calibrate.probes import Probe
from kareus.gpu_model.gpu import Gpu
from kareus.profile.tables import LOOKS, MEASUREMENTS
from kareus.testbed.simulated_testbed import SimulatedTestbed

PROTOCOL = short(protocol())


@dataclass(frozen=True)
class Rehearsal:
    """A calibration of a hidden GPU."""

    measured: Measured
    fitted: Calibrated


def shelves() -> Shelves:
    return Shelves(RowShelf(MEASUREMENTS), RowShelf(LOOKS), RowShelf(HEAT_READINGS))


def hidden_testbed(hidden: Gpu, seed: int = 0) -> SimulatedTestbed:
    return SimulatedTestbed(config=simulated(), gpu=hidden, predecessor_power_w=PROTOCOL.predecessor_power_w, seed=seed)


def rehearse(start: Gpu, hidden: Gpu, chosen: Sequence[Probe], budget_s: float, seed: int = 0) -> Rehearsal:
    expected = expectations(start)
    trials = ordered_trials(chosen, clocks_of(start, settable=True), start, expected, PROTOCOL, budget_s)
    measured = measure_trials(hidden_testbed(hidden, seed), PROTOCOL, shelves(), trials, budget_s)
    warm = heat_of(measured.heat, start).applied(start)
    return Rehearsal(measured, calibrate(measured.observations, warm, expected))
