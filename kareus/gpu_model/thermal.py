"""Heat: one thermal resistance and capacity, with leakage that grows with temperature.

A linear differential equation, so that seconds of heating cost one exponential:
dT/dt = (ambient + R (P + l (T - T_ref)) - T) / tau.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.coefficients import GpuCoefficients
from kareus.gpu_model.gpu import Gpu

Joules = TypeVar("Joules", float, Array)
WAITING_SHARE = 0.1
"""Of an iteration, that a GPU waits for others: what short pipelines and the paper's workloads have."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A time of constant work, starting at `start_c`; of one chip, or of many with arrays of their numbers."""

    power_w: Array | float
    """Power of the work at the reference temperature."""
    start_c: Array | float
    ambient_c: float
    coefficients: GpuCoefficients

    def temperature_c(self, elapsed_s: Array | float) -> Array | float:
        """Temperature after `elapsed_s`."""
        final_c, rate = self._final_c, self._rate
        return final_c + (self.start_c - final_c) * np.exp(-rate * elapsed_s)

    def energy_j(self, elapsed_s: Array | float) -> Array | float:
        """Energy drawn after `elapsed_s`: the work's, and leakage above or below the reference."""
        final_c, rate, c = self._final_c, self._rate, self.coefficients
        degree_seconds = final_c * elapsed_s + (self.start_c - final_c) * -np.expm1(-rate * elapsed_s) / rate
        leakage_j = c.leakage_w_per_c * (degree_seconds - c.reference_temperature_c * elapsed_s)
        return self.power_w * elapsed_s + leakage_j

    @property
    def _feedback(self) -> float:
        return _feedback(self.coefficients)

    @property
    def _rate(self) -> float:
        return (1 - self._feedback) / self.coefficients.thermal_time_s

    @property
    def _final_c(self) -> Array | float:
        c = self.coefficients
        reference_power_w = self.power_w - c.leakage_w_per_c * c.reference_temperature_c
        return (self.ambient_c + c.thermal_resistance_c_per_w * reference_power_w) / (1 - self._feedback)


def sustained_j(gpu: Gpu, energy_j: Joules, time_s: Joules) -> Joules:
    """Return the energy in J of work of the GPU model on a chip that trains for long: what is planned with and printed.

    The model's `energy_j` is at the reference temperature. In a training a chip settles to T = ambient + R P, where its
    mean power P is that of such work for all but `WAITING_SHARE` of the time, and of waiting for that. It then leaks
    `leakage_w_per_c` more for each degree. That is linear in energy and time, so that sustained energies add up: of the
    parts of an instruction, of the instructions of an iteration. They are 1 % too high (A100) in an iteration with
    twice as much waiting, and 1 % too low in one with none.

    Args:
        gpu: that works.
        energy_j: of the work, of one GPU, as its time of any shape.
        time_s: that it takes.

    Example:
        >>> import kareus
        >>> gpu = kareus.resolve(["gpu=a100-sxm4-40gb"])[0].gpu
        >>> round(sustained_j(gpu, 300.0, 1.0), 1)  # at 53 degC instead of 50
        304.8
    """
    return sustained_profile_j(gpu, energy_j, time_s, gpu.coefficients.reference_temperature_c)


def sustained_profile_j(
    gpu: Gpu,
    energy_j: Joules,
    time_s: Joules,
    window_c: float | None,
    waiting_share: float = WAITING_SHARE,
) -> Joules:
    """Return what `sustained_j` does, of an energy in J that was measured at a mean temperature of `window_c`.

    Right after a cooldown a chip is cooler than in a training. None: not known, and nothing is changed.
    """
    if window_c is None:
        return energy_j
    c, busy_share = gpu.coefficients, 1 - waiting_share
    waiting_c = c.thermal_resistance_c_per_w * waiting_share * gpu.blocking_power_w
    leaked_w = c.leakage_w_per_c * (gpu.ambient_c + waiting_c - window_c)
    return (energy_j + leaked_w * time_s) / (1 - busy_share * _feedback(c))


def settled(gpu: Gpu) -> Gpu:
    """Return a GPU that has trained for minutes: with its numbers at the temperature that its power limit heats it to.

    So what leaks is drawn before the limit acts, and no mean power of a training exceeds the limit.

    Args:
        gpu: with its numbers at the temperature of its file.
    """
    c = gpu.coefficients
    if not c.leakage_w_per_c:
        return gpu
    warm_c = max(gpu.ambient_c + c.thermal_resistance_c_per_w * gpu.power_limit_w, c.reference_temperature_c)
    leaked_w = c.leakage_w_per_c * (warm_c - c.reference_temperature_c)
    return replace(gpu, coefficients=replace(c, reference_temperature_c=warm_c, warm_leakage_w=leaked_w))


def of_profiles(gpu: Gpu) -> Gpu:
    """Return a GPU with its numbers at the temperature that its file has, which is that of profiles.

    The inverse of `settled`, to all digits that a file may have.
    """
    c = gpu.coefficients
    if not (c.warm_leakage_w and c.leakage_w_per_c):
        return gpu
    cool_c = round(c.reference_temperature_c - c.warm_leakage_w / c.leakage_w_per_c, 9)
    return replace(gpu, coefficients=replace(c, reference_temperature_c=cool_c, warm_leakage_w=0.0))


def with_numbers(gpu: Gpu, static_power_w: float, coefficients: Mapping[str, float]) -> Gpu:
    """Return a GPU with other numbers of its file; one that was settled settles anew, to what these make of heat.

    Args:
        gpu: settled or not.
        static_power_w: at the temperature of its file.
        coefficients: that change, by name.
    """
    whole = of_profiles(gpu)
    changed: dict[str, Any] = dict(coefficients)
    other = replace(whole, static_power_w=static_power_w, coefficients=replace(whole.coefficients, **changed))
    return settled(other) if gpu.coefficients.warm_leakage_w else other


def at_reference_j(gpu: Gpu, energy_j: float, time_s: float) -> float:
    """Return the energy in J at the reference temperature of work whose sustained energy is given."""
    none_j, one_j = (sustained_j(gpu, joules, time_s) for joules in (0.0, 1.0))
    return (energy_j - none_j) / (one_j - none_j)


def window_temperature_c(before_c: float, after_c: float, window_s: float, coefficients: GpuCoefficients) -> float:
    """Return the mean temperature over a window of constant work, in which the chip settles exponentially.

    Args:
        before_c: at the start of the window.
        after_c: at its end.
        window_s: its length.
        coefficients: of the GPU; how fast it settles.
    """
    time_constants = window_s / coefficients.thermal_time_s * (1 - _feedback(coefficients))
    left = math.exp(-time_constants)
    if left > 0.99:  # noqa: PLR2004 - nearly a straight line, of which the end cannot be foreseen
        return (before_c + after_c) / 2
    final_c = (after_c - before_c * left) / (1 - left)
    return final_c + (before_c - final_c) * (1 - left) / time_constants


def _feedback(coefficients: GpuCoefficients) -> float:
    """Share of a degree that leaks back as heat; below 1, or the chip would run away."""
    return coefficients.thermal_resistance_c_per_w * coefficients.leakage_w_per_c
