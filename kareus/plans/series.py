"""A price of energy, or its carbon intensity: what one may be, its units, and a series of them by the hour."""

from dataclasses import dataclass, field
from enum import StrEnum

from kareus.errors import ConfigError


class Unit(StrEnum):
    """Quantity of a series: the name of its column."""

    PRICE = "price_per_kwh"
    CARBON = "carbon_g_per_kwh"


@dataclass(frozen=True, slots=True)
class Plausible:
    """What a quantity of energy can be, in its unit for a kilowatt-hour."""

    least: float
    most: float
    usual: float
    """For examples in messages."""
    why: str
    """Where the two bounds come from, and what to do with a value beyond them."""


PLAUSIBLE = {
    Unit.PRICE: Plausible(
        -1.0,
        20.3,
        0.12,
        "the floor and the cap of Australia's market in 2025, the widest of any; a price of a MWh is price_per_mwh or "
        "perMWh, one in a smaller currency is to be converted",
    ),
    Unit.CARBON: Plausible(
        0.0,
        2000.0,
        400.0,
        "lignite, 364 g for a kWh of heat (IPCC 2006), burnt at 18 %; no grid takes carbon out of the air",
    ),
}
"""The Australian market (AEMO, 2025-26) pays -1,000 to 20,300 AUD for a MWh, the European one -500 to 4,000 EUR."""
SUFFIXES = {
    Unit.PRICE: {"perkWh": 1.0, "perMWh": 1e-3},
    Unit.CARBON: {"gperkWh": 1.0, "kgperMWh": 1.0},
}
"""Suffixes of numbers on the command line, such as `52.3perMWh`, and what they are for a kilowatt-hour."""


def check_plausible(place: str, text: str, unit: Unit, value: float) -> None:
    """Check a price or an intensity of a kilowatt-hour.

    Args:
        place: what gives it, the start of the message.
        text: as it is given.
        unit: of the value.
        value: for a kilowatt-hour.

    Raises:
        ConfigError: no grid has it; more likely it is in another unit.
    """
    plausible = PLAUSIBLE[unit]
    if not plausible.least <= value <= plausible.most:
        raise ConfigError(
            f"{place}: {text}: a {unit} of {value:,g} is not plausible; must be from {plausible.least:g} to "
            f"{plausible.most:,g} ({plausible.why})."
        )


@dataclass(frozen=True, slots=True)
class HourlySeries:
    """One value for each hour, from hour 0."""

    unit: Unit
    values: tuple[float, ...]
    """For a kilowatt-hour: money, or g of CO2."""
    currency: str = ""
    """Three letters, such as EUR; empty where nothing says it."""
    began_s: int | None = None
    """When hour 0 began, seconds since the epoch; None where hours are only counted."""
    understood: str = field(default="", compare=False)
    """What was understood of its file, in one line."""
