"""Waiting: its power at a locked clock, its energy on a stage, and the effective energy of work beside it.

GPUs draw the least power of waiting for as long as an iteration lasts, whatever they run, so that a second of work
costs its energy less that of a second of waiting (docs/architecture.md, "The mathematics"). What waiting at a higher
clock draws above it is charged where a stage waits: the engine asks for a clock before it waits for what the
instruction needs, so that a stage waits at the clock of the next one, and after its last at that one's. Trainers that
wait first wait at the clock before; their plans are priced as the engine's.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu

Joules = TypeVar("Joules", float, Array)


def waiting_power_w(gpu: Gpu, frequency_mhz: float) -> float:
    """Return the power of a GPU that waits at a locked clock: a line between the clocks at which it was measured.

    Example:
        >>> import kareus
        >>> gpu = kareus.resolve(["gpu=h100-sxm5-80gb"])[0].gpu
        >>> waiting_power_w(gpu, 900.0) < waiting_power_w(gpu, 1980.0) == gpu.blocking_power_w
        True
    """
    if not gpu.waiting_shares:
        return gpu.blocking_power_w
    clocks_mhz, shares = zip(*gpu.waiting_shares, strict=True)
    return gpu.blocking_power_w * float(np.interp(frequency_mhz, clocks_mhz, shares))


def least_waiting_w(gpu: Gpu) -> float:
    """Return the power of waiting at the clock at which it is least: what every second of an iteration costs."""
    return gpu.blocking_power_w * min((share for _, share in gpu.waiting_shares), default=1.0)


def waiting_above_w(gpu: Gpu, frequency_mhz: float) -> float:
    """Return by how many watts waiting at a locked clock is above the least; of one GPU."""
    return waiting_power_w(gpu, frequency_mhz) - least_waiting_w(gpu)


def waited_j(
    stage: Sequence[int],
    starts_s: Sequence[float],
    times_s: Sequence[float],
    powers_w: Sequence[float],
    end_s: float,
) -> float:
    """Return the energy in J with which one stage waits.

    Args:
        stage: numbers of its instructions, in order.
        starts_s: of all instructions.
        times_s: of the same.
        powers_w: of waiting for each, at its clock.
        end_s: of the iteration.

    Example:
        >>> waited_j([0, 1], starts_s=[1.0, 3.0], times_s=[1.0, 1.0], powers_w=[10.0, 20.0], end_s=5.0)
        50.0
    """
    energy_j = now_s = 0.0
    for n in stage:
        energy_j, now_s = energy_j + powers_w[n] * (starts_s[n] - now_s), starts_s[n] + times_s[n]
    return energy_j + powers_w[stage[-1]] * (end_s - now_s)


def effective_energy_j(energy_j: Joules, time_s: Joules, waiting_power_w: Joules | float) -> Joules:
    """Return the energy of work in J, less what waiting for `time_s` would take; all of as many GPUs."""
    return energy_j - waiting_power_w * time_s


def total_energy_j(effective_j: Joules, time_s: Joules, waiting_power_w: Joules | float) -> Joules:
    """Return the energy in J of GPUs that do work of `effective_j` within `time_s` and wait for the rest of it."""
    return effective_j + waiting_power_w * time_s
