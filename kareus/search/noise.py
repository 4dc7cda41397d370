"""Noise of one measurement: the configured noise, unless what was measured twice contradicts it.

A candidate whose time was measured alone and with its energy was timed twice, at no cost. Powers are measured twice
only where a strategy asks for it. With d the difference of the logarithms of two measurements of standard deviation s,
d^2 / (2 s^2) is chi-squared with one degree of freedom.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from kareus.arrays import Array, Indices
from kareus.search.dataset import Dataset

DOUBT = 0.01
"""Chance of so large a scatter under the configured noise below which the scatter is believed."""


class Noise(NamedTuple):
    """Relative standard deviations of one measurement."""

    time: float
    power: float


def noise_of(data: Dataset, configured: float) -> Noise:
    """Return the noise of a measured time and of a measured power.

    The configured noise is the least: below it, certainty is limited by what repeats do not show.

    Args:
        data: all measurements so far.
        configured: relative standard deviation that is presumed of both.
    """
    again_s, again_j = data.repeated_time_s, data.repeated_energy_j
    whole_s, whole_j = (values[_places(data.candidates, data.repeated)] for values in (data.time_s, data.energy_j))
    both = np.isin(data.timed, data.candidates)
    alone_s, with_energy_s = data.timed_time_s[both], data.time_s[_places(data.candidates, data.timed[both])]
    times = np.log(np.concatenate((again_s / whole_s, alone_s / with_energy_s)))
    powers = np.log(again_j / again_s) - np.log(whole_j / whole_s)
    return Noise(_believed(times, configured), _believed(powers, configured))


def _places(candidates: Indices, of: Indices) -> Indices:
    """Return where each of some measured candidates is among all that were."""
    order = np.argsort(candidates)
    places: Indices = order[np.searchsorted(candidates, of, sorter=order)]
    return places


def _believed(differences: Array, configured: float) -> float:
    """Return the standard deviation of one of two measurements that differ so, or the configured one."""
    squares = float(np.square(differences).sum()) / 2
    if not len(differences) or squares <= configured**2 * chdtri(len(differences), DOUBT):
        return configured
    return float(np.sqrt(squares / len(differences)))
