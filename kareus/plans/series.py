"""A price of energy, or its carbon intensity: what one may be, its units, and a series by the hour from a CSV file."""

import csv
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.errors import ConfigError

BYTE_ORDER_MARK = "\ufeff"
"""Spreadsheets begin UTF-8 files with it."""
MOST_HOURS = 8784


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
COLUMNS = {
    "price_per_kwh": (Unit.PRICE, 1.0),
    "price_per_mwh": (Unit.PRICE, 1e-3),
    "carbon_g_per_kwh": (Unit.CARBON, 1.0),
    "carbon_kg_per_mwh": (Unit.CARBON, 1.0),
}
"""Quantity by the name of a file's column, and what a value of it is for a kilowatt-hour."""
CONVERSIONS = {
    "Carbon intensity gCO": "this is an export of Electricity Maps: number its hours from 0, and take g/kWh from its "
    "column of carbon intensity (life cycle or direct) as carbon_g_per_kwh",
    "point_time": "this is an export of WattTime: number hours from 0, and take the mean of each hour's values, in "
    "pounds of a MWh, times 0.45359 as carbon_g_per_kwh",
    "MTU": "this is an export of ENTSO-E: number hours from 0, and take EUR of a MWh as price_per_mwh",
    ";": "write commas between columns, and points in numbers",
}
"""How files are converted that others offer, by a part of their header."""
SUFFIXES = {
    Unit.PRICE: {"perkWh": 1.0, "perMWh": 1e-3},
    Unit.CARBON: {"gperkWh": 1.0, "kgperMWh": 1.0},
}
"""The same of numbers on the command line, such as `52.3perMWh`."""


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


def read_series(path: Path) -> HourlySeries:
    """Read a CSV file with the columns `hour` (0, 1, 2, ...) and one of `COLUMNS`.

    Prices may be negative, as they are on some markets; carbon intensities may not.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it is not such a series.
    """
    try:
        rows = list(csv.reader(read_text(path).removeprefix(BYTE_ORDER_MARK).splitlines()))
    except csv.Error as error:
        raise ConfigError(f"{path}: is not CSV: {error}.") from None
    header = [name.strip() for name in rows[0]] if rows else []
    if header[:1] != ["hour"] or len(header) != 2 or header[1] not in COLUMNS:  # noqa: PLR2004 - of two columns
        raise ConfigError(
            f"{path}: columns {','.join(header) or 'none'}; expected hour,price_per_kwh or hour,carbon_g_per_kwh (of "
            f"a MWh: hour,price_per_mwh or hour,carbon_kg_per_mwh), separated by commas{_conversion(header)}."
        )
    unit, factor = COLUMNS[header[1]]
    body = [row for row in rows[1:] if row]
    if len(body) > MOST_HOURS:
        raise ConfigError(f"{path}: has {len(body):,} hours; give at most {MOST_HOURS:,}, a leap year.")
    if not body:
        raise ConfigError(f"{path}: has no hours; give one row for each.")
    return HourlySeries(unit, tuple(_value(path, unit, factor, hour, row) for hour, row in enumerate(body)))


def _conversion(header: list[str]) -> str:
    """Return how a file that grid operators and services offer is converted, where the header tells which."""
    return next((f"; {how}" for mark, how in CONVERSIONS.items() if mark in ",".join(header)), "")


def _value(path: Path, unit: Unit, factor: float, hour: int, row: list[str]) -> float:
    try:
        hour_text, value_text = row
        if "_" in hour_text + value_text:  # Python would read `1_0` as 10
            raise ValueError
        found, value = int(hour_text), float(value_text)
    except ValueError:
        raise ConfigError(f"{path}: row {hour + 1}: '{','.join(row)}' is not an hour and a number.") from None
    if found != hour:
        raise ConfigError(
            f"{path}: row {hour + 1}: hour {found}, expected {hour}; hours count up from 0 without a gap."
        )
    if not math.isfinite(value):
        raise ConfigError(f"{path}: row {hour + 1}: {value_text.strip()} is not a finite number.")
    check_plausible(f"{path}: row {hour + 1}", value_text.strip(), unit, value * factor)
    return value * factor
