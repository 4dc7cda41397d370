"""A price of energy, or its carbon intensity, by the hour: read from a CSV file of two columns."""

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
MOST_VALUE = 1_000_000
"""Largest price or grams of carbon of a kilowatt-hour."""


class Unit(StrEnum):
    """Quantity of a series: the name of its column."""

    PRICE = "price_per_kwh"
    CARBON = "carbon_g_per_kwh"


@dataclass(frozen=True, slots=True)
class HourlySeries:
    """One value for each hour, from hour 0."""

    unit: Unit
    values: tuple[float, ...]


def read_series(path: Path) -> HourlySeries:
    """Read a CSV file with the columns `hour` (0, 1, 2, ...) and `price_per_kwh` or `carbon_g_per_kwh`.

    Prices may be negative, as they are on some markets.

    Raises:
        ArtifactError: the file cannot be read.
        ConfigError: it is not such a series.
    """
    try:
        rows = list(csv.reader(read_text(path).removeprefix(BYTE_ORDER_MARK).splitlines()))
    except csv.Error as error:
        raise ConfigError(f"{path}: is not CSV: {error}.") from None
    header = [name.strip() for name in rows[0]] if rows else []
    units = [unit for unit in Unit if header == ["hour", unit]]
    if not units:
        raise ConfigError(
            f"{path}: columns {','.join(header) or 'none'}; expected hour,price_per_kwh or hour,carbon_g_per_kwh."
        )
    body = [row for row in rows[1:] if row]
    if len(body) > MOST_HOURS:
        raise ConfigError(f"{path}: has {len(body):,} hours; give at most {MOST_HOURS:,}, a leap year.")
    if not body:
        raise ConfigError(f"{path}: has no hours; give one row for each.")
    return HourlySeries(units[0], tuple(_value(path, hour, row) for hour, row in enumerate(body)))


def _value(path: Path, hour: int, row: list[str]) -> float:
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
    if abs(value) > MOST_VALUE:
        raise ConfigError(
            f"{path}: row {hour + 1}: {value_text.strip()} must be from -{MOST_VALUE:,} to {MOST_VALUE:,} per kWh."
        )
    return value
