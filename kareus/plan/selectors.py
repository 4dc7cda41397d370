"""Selectors: how a user names the point of the frontier that they want.

The same text on the command line and in file names: `fastest`, `min-energy`, `deadline=5.2s`, `energy=20kJ`.
"""

import math
import re
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from kareus.errors import ConfigError

ALLOWED = "allowed: fastest, min-energy, deadline=<time> (such as 5.2s or 900ms), energy=<energy> (such as 20kJ)"

UNITS = {"deadline": {"ms": 1e-3, "s": 1.0, "min": 60.0}, "energy": {"J": 1.0, "kJ": 1e3, "MJ": 1e6}}


class Goal(StrEnum):
    """What a selector asks for."""

    FASTEST = "fastest"
    """The least time, whatever the energy."""
    MIN_ENERGY = "min-energy"
    """The least energy, whatever the time."""
    DEADLINE = "deadline"
    """The least energy within a time."""
    ENERGY = "energy"
    """The least time within an energy."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector."""

    goal: Goal
    limit: float | None = None
    """Seconds for `deadline`, joules for `energy`."""


def parse_selector(text: str) -> Selector:
    """Parse a selector.

    Raises:
        ConfigError: it is not one, or its limit is not a positive number with a unit.
    """
    name, equals, value = text.partition("=")
    if name in (Goal.FASTEST, Goal.MIN_ENERGY) and not equals:
        return Selector(Goal(name))
    match = re.fullmatch(r"([0-9.eE+-]+)([a-zA-Z]+)", value)
    unit = UNITS.get(name, {}).get(match[2]) if match else None
    if match is None or unit is None:
        raise ConfigError(f"selector '{text}': not understood; {ALLOWED}.")
    try:
        limit = float(match[1]) * unit
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ConfigError(f"selector '{text}': '{match[1]}' is not a positive number; {ALLOWED}.")
    return Selector(Goal(name), limit)


def select(selector: Selector, plans: pl.DataFrame) -> int:
    """Return the row of `plans` (time_s, energy_j; a frontier) that `selector` asks for; `limits` plans between rows.

    Raises:
        ConfigError: no plan is within the limit; the message says what can be reached.
    """
    measure, limited, unit = (
        ("time_s", "energy_j", "J") if selector.goal is Goal.ENERGY else ("energy_j", "time_s", "s")
    )
    if selector.goal is Goal.FASTEST:
        measure = "time_s"
    indexed = plans.with_row_index("row")
    if selector.limit is not None:
        within = indexed.filter(pl.col(limited) <= selector.limit)
        if within.is_empty():
            raise ConfigError(
                f"{selector.goal}={selector.limit:g}{unit}: no plan is within it; "
                f"the least that can be reached is {min(plans[limited].to_list()):.6g}{unit}."
            )
        indexed = within
    return int(indexed.sort(measure, "time_s")["row"][0])
