"""Savings of a campaign's or a fleet's plans, in one sentence."""

from collections.abc import Sequence
from typing import Protocol

from kareus.plans.answer import AS_FAST_WORDS, BASELINE
from kareus.plans.units import compared, less, rounded
from kareus.software.trainers import ENGINE, trainers

ISO_NOTE = "Iso-time: energy if both take as long; iso-energy: time if both need as much energy"
"""Note of a table of frontier improvement."""
WHICH_PLAN = f"Headlines of pages are of plans `fastest` instead: {AS_FAST_WORDS}"
"""Note of a table of the least time of each method."""


class Compared(Protocol):
    """A plan that is compared with that of `sequential`, such as an `Answer`."""

    @property
    def time_reduction_percent(self) -> float:
        """Time that it saves."""

    @property
    def energy_reduction_percent(self) -> float:
        """Energy that it saves."""


def savings_words(plans: Sequence[Compared], what: str) -> str:
    """Return what plans `fastest` of `kareus` save, in one sentence; empty without any.

    Args:
        plans: one for each thing that was planned.
        what: those things, such as `12 workloads`.
    """
    if not plans:
        return ""
    times = [plan.time_reduction_percent for plan in plans]
    energies = [plan.energy_reduction_percent for plan in plans]
    saved = compared(_range(times, "time"), _range(energies, "energy"), BASELINE)
    return f"Plan `fastest` of {what}, in {trainers()[ENGINE].title}: {saved}."


def _range(values: Sequence[float], of: str) -> str:
    low, high = min(values), max(values)
    if less(low, of) == less(high, of):
        return less(low, of)
    if low < 0 < high:
        return f"from {less(low, of)} to {less(high, of)}"
    near, far = sorted((abs(low), abs(high)))
    return f"{rounded(near)} to {rounded(far)} % {'less' if high > 0 else 'more'} {of}"
