"""Effective energy: what work costs beyond the power that its GPUs would draw waiting.

GPUs draw that power for as long as an iteration lasts, whatever they run, so that a second of work costs its energy
less that of a second of waiting (docs/architecture.md, "The mathematics").
"""

from typing import TypeVar

from kareus.arrays import Array

Joules = TypeVar("Joules", float, Array)


def effective_energy_j(energy_j: Joules, time_s: Joules, waiting_power_w: float) -> Joules:
    """Return the energy of work in J, less what waiting for `time_s` would take; all of as many GPUs."""
    return energy_j - waiting_power_w * time_s


def total_energy_j(effective_j: Joules, time_s: Joules, waiting_power_w: float) -> Joules:
    """Return the energy in J of GPUs that do work of `effective_j` within `time_s` and wait for the rest of it."""
    return effective_j + waiting_power_w * time_s
