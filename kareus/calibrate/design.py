"""The order of trials: first those that tell most of all kernels for the time that they take.

A priori the logarithms of times and powers of all probes are jointly Gaussian, since they depend on the same uncertain
coefficients. A trial is worth by how much it lowers the sum of their variances, over the seconds that it takes; then
the next is chosen in the knowledge of the first. So a shorter calibration is the beginning of a longer one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.coefficients import Expected, log_costs_and_slopes
from kareus.calibrate.probes import Probe
from kareus.gpu_model.gpu import Gpu
from kareus.profile.config import MeasurementProtocol

CLOCKS = 5
"""Clocks that are measured at, of those that are searched."""
MISFIT = 0.01
"""Relative error that a law may have at a shape: what measuring the same twice does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTrial:
    """One measurement to make."""

    probe: Probe
    frequency_mhz: int
    with_energy: bool
    """Whether energy is measured; time alone takes a fraction of the time."""


def clocks_of(gpu: Gpu, *, settable: bool) -> tuple[int, ...]:
    """Return the clocks to measure at, from the highest: the maximum alone where clocks are not `settable`."""
    if not settable:
        return (gpu.maximum_clock_mhz,)
    every = [clock for clock in gpu.search_frequencies.clocks_mhz if clock <= gpu.maximum_clock_mhz]
    places = np.linspace(0, len(every) - 1, min(CLOCKS, len(every))).round().astype(int)
    return tuple(sorted({every[place] for place in places}, reverse=True))


def seconds_of(trial: CalibrationTrial, protocol: MeasurementProtocol) -> float:
    """Return about how long a trial takes on the testbed's clock."""
    if not trial.with_energy:
        return protocol.warmup_s
    return protocol.warmup_s + 2 * protocol.settle_s + protocol.cooldown_s + protocol.window_s


def ordered_trials(
    probes: Sequence[Probe],
    clocks_mhz: Sequence[int],
    gpu: Gpu,
    expected: Mapping[str, Expected],
    protocol: MeasurementProtocol,
    budget_s: float,
) -> list[CalibrationTrial]:
    """Return the trials of a calibration, the most telling first.

    Args:
        probes: programs to choose from.
        clocks_mhz: clocks to choose from.
        gpu: GPU whose coefficients are the most likely ones.
        expected: coefficients that are uncertain.
        protocol: how a trial is measured, which tells how long it takes.
        budget_s: time after which no further trial begins.
    """
    pairs = [(probe, clock) for probe in probes for clock in clocks_mhz]
    covariance = _covariance(probes, clocks_mhz, gpu, expected)
    full, short = (
        seconds_of(CalibrationTrial(probe=probes[0], frequency_mhz=clocks_mhz[0], with_energy=with_energy), protocol)
        for with_energy in (True, False)
    )
    left = np.ones((2, len(pairs)), dtype=bool)  # with energy, and of time alone
    chosen, spent_s = list[CalibrationTrial](), 0.0
    while spent_s < budget_s and left.any():
        gains = _gains(covariance) / np.array([[full], [short]])
        with_time, place = np.unravel_index(np.argmax(np.where(left, gains, -1.0)), left.shape)
        probe, clock = pairs[place]
        trial = CalibrationTrial(probe=probe, frequency_mhz=clock, with_energy=not with_time)
        chosen.append(trial)
        spent_s += seconds_of(trial, protocol)
        left[:, place] &= np.array([False, False]) if trial.with_energy else np.array([True, False])
        covariance = _after(covariance, int(place))
        if trial.with_energy:
            covariance = _after(covariance, len(pairs) + int(place))
    return chosen


def _covariance(
    probes: Sequence[Probe], clocks_mhz: Sequence[int], gpu: Gpu, expected: Mapping[str, Expected]
) -> Array:
    """A-priori covariance of the logarithms of all times, then of all powers, by probe and clock."""
    logarithms = np.log([expectation.value for expectation in expected.values()])
    spreads = np.array([expectation.spread for expectation in expected.values()])
    slopes = [log_costs_and_slopes(gpu, list(expected), logarithms, p.program, clocks_mhz)[1] for p in probes]
    scaled = np.concatenate(slopes, axis=1).reshape(-1, len(expected)) * spreads
    covariance: Array = scaled @ scaled.T
    return covariance


def _gains(covariance: Array) -> Array:
    """By how much measuring time and power, or time alone, lowers the sum of variances, shape (2, pairs).

    Time and power of one trial are counted as if one did not tell of the other, which ranks trials well enough.
    """
    lowered: Array = (covariance**2).sum(axis=0) / (np.diag(covariance) + MISFIT**2)
    times, powers = np.split(lowered, 2)
    return np.stack([times + powers, times])


def _after(covariance: Array, place: int) -> Array:
    """Covariance after item `place` was measured."""
    column = covariance[:, place]
    after: Array = covariance - np.outer(column, column) / (column[place] + MISFIT**2)
    return after
