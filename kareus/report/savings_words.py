"""Savings of a campaign's or a fleet's plans at max throughput, in one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kareus.plans.answer import BASELINE
from kareus.plans.units import compared, less, rounded


class Compared(Protocol):
    """A plan that is compared with that of `sequential`."""

    @property
    def time_reduction_percent(self) -> float | None:
        """Time that it saves."""

    @property
    def energy_reduction_percent(self) -> float | None:
        """Energy that it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reductions:
    """What a plan saves, in percent."""

    time_reduction_percent: float | None
    energy_reduction_percent: float | None


def savings_words(plans: Sequence[Compared], what: str) -> str:
    """Return what plans of `kareus` save at max throughput, in one sentence; empty without any.

    Args:
        plans: one for each thing that was planned.
        what: those things, such as `12 workloads`.
    """
    times = [plan.time_reduction_percent for plan in plans if plan.time_reduction_percent is not None]
    energies = [plan.energy_reduction_percent for plan in plans if plan.energy_reduction_percent is not None]
    if not times or not energies:
        return ""
    saved = compared(_range(times, "time"), _range(energies, "energy"), BASELINE)
    return f"At max throughput, in Kareus' engine, plans of {what}: {saved}."


def _range(values: Sequence[float], of: str) -> str:
    low, high = min(values), max(values)
    if less(low, of) == less(high, of):
        return less(low, of)
    if low < 0 < high:
        return f"from {less(low, of)} to {less(high, of)}"
    near, far = sorted((abs(low), abs(high)))
    return f"{rounded(near)} to {rounded(far)} % {'less' if high > 0 else 'more'} {of}"
