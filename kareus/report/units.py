"""Numbers in words, and with units that scale to them: a cap of 0.008 MW reads 8 kW."""

from collections.abc import Sequence
from typing import Protocol

from kareus.plans.answer import BASELINE

PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))


def scaled(value: float, unit: str, *, digits: int = 3) -> str:
    """Return a value with a unit of its size and at least `digits` significant digits, such as `8.00 kW`."""
    factor, prefix = _prefix(abs(value))
    shown = value / factor
    decimals = max(0, digits - len(f"{abs(shown):.0f}"))
    return f"{shown:,.{decimals}f} {prefix}{unit}"


def common_scale(values: list[float], unit: str) -> tuple[float, str]:
    """Return the factor and the unit in which the largest of some values reads best."""
    factor, prefix = _prefix(max(map(abs, values), default=1.0))
    return factor, f"{prefix}{unit}"


def _prefix(value: float) -> tuple[float, str]:
    return next(((factor, prefix) for factor, prefix in PREFIXES if value >= factor), (1.0, ""))


class Compared(Protocol):
    """A plan that is compared with the fastest of `sequential`."""

    @property
    def time_reduction_percent(self) -> float | None:
        """Time that it saves."""

    @property
    def energy_reduction_percent(self) -> float | None:
        """Energy that it saves."""


def less(percent: float, of: str) -> str:
    """Return a reduction in words, such as `16 % less time`."""
    whole = round(abs(percent))
    if whole == 0:
        return f"the same {of}"
    return f"{whole} % {'less' if percent > 0 else 'more'} {of}"


def savings_words(plans: Sequence[Compared], what: str) -> str:
    """Return what the fastest plans of `kareus` save, in one sentence; empty without any.

    Args:
        plans: one for each thing that was planned.
        what: those things, such as `12 workloads`.
    """
    times = [plan.time_reduction_percent for plan in plans if plan.time_reduction_percent is not None]
    energies = [plan.energy_reduction_percent for plan in plans if plan.energy_reduction_percent is not None]
    if not times or not energies:
        return ""
    return (
        f"The fastest plans of kareus for {what}: {_range(times, 'time')} and {_range(energies, 'energy')} than "
        f"{BASELINE}."
    )


def _range(values: Sequence[float], of: str) -> str:
    low, high = round(min(values)), round(max(values))
    if low == high:
        return less(low, of)
    if low < 0 < high:
        return f"from {less(low, of)} to {less(high, of)}"
    near, far = sorted((abs(low), abs(high)))
    return f"{near} to {far} % {'less' if high > 0 else 'more'} {of}"
