"""Goals of a plan: deadlines, power caps and prices, with their units; and what plans cost by them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kareus.artifacts.records import suggest
from kareus.errors import ConfigError
from kareus.plans.grid_files import read_series
from kareus.plans.run_totals import check_tokens
from kareus.plans.selectors import MOST_PRICE, NUMBER, Goal, number_in
from kareus.plans.series import PLAUSIBLE, SUFFIXES, HourlySeries, Unit, check_plausible
from kareus.plans.units import HOURS_PER_DAY, JOULES_PER_KWH, SECONDS_PER_HOUR, duration, scaled

DURATIONS = {"s": 1.0, "min": 60.0, "h": SECONDS_PER_HOUR, "d": HOURS_PER_DAY * SECONDS_PER_HOUR}
"""Seconds by unit of a duration."""
POWERS = {"W": 1.0, "kW": 1e3, "MW": 1e6}
"""Watts by unit of a power."""
MOST_W, MOST_S = 1e12, 1e10
CURRENCY = r"([A-Z]{3})?"
"""Three letters between a price and what it is of."""


class Least(StrEnum):
    """What the chosen plan has the least of, among those that keep all limits."""

    TIME = "time"
    ENERGY = "energy"
    COST = "cost"
    EDP = "edp"
    """The product of time and energy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What is wanted of a plan."""

    least: Least | None = None
    """What to have the least of; None: cost if prices are given, energy with a deadline, else time."""
    tokens: float | None = None
    """Tokens of the whole training."""
    deadline_s: float | None = None
    """Time for the whole training."""
    site_w: float | None = None
    """Cap on the mean power of all GPUs."""
    node_w: float | None = None
    """Cap on the mean power of the GPUs of a node."""
    gpu_w: float | None = None
    """Power limit that is set on every GPU."""
    price_per_kwh: float | HourlySeries | None = None
    price_per_gpu_hour: float | None = None
    currency: str = ""
    """Of both prices, such as EUR; empty where neither says it."""
    carbon_g_per_kwh: float | HourlySeries | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None:
            check_tokens(self.tokens)
        if self.deadline_s is not None and self.tokens is None:
            raise ConfigError("--deadline: is of a whole training; give its --tokens, too, such as --tokens 1e11.")
        if self.least is Least.COST and self.price_per_kwh is None and self.price_per_gpu_hour is None:
            raise ConfigError("--least cost: needs prices; give --price 0.12perkWh, --gpu-price 2.5perGPUh, or both.")

    @property
    def minimised(self) -> Least:
        """What the chosen plan has the least of."""
        if self.least is not None:
            return self.least
        if self.price_per_kwh is not None or self.price_per_gpu_hour is not None:
            return Least.COST
        return Least.TIME if self.deadline_s is None else Least.ENERGY

    @property
    def limits(self) -> list[str]:
        """The limits that a plan has to keep, as options with their values."""
        deadline = [] if self.deadline_s is None else [f"--deadline {_span(self.deadline_s)}"]
        return deadline + self.caps

    @property
    def caps(self) -> list[str]:
        """The limits on power, as options with their values."""
        caps = {"--max-power": self.site_w, "--max-node-power": self.node_w, "--max-gpu-power": self.gpu_w}
        return [f"{option} {scaled(cap_w, 'W')}" for option, cap_w in caps.items() if cap_w is not None]

    @property
    def understood(self) -> list[str]:
        """What was understood of each file of prices or intensities."""
        given = (self.price_per_kwh, self.carbon_g_per_kwh)
        return [series.understood for series in given if isinstance(series, HourlySeries)]

    def cap_w(self, gpus: int, gpus_per_node: int) -> float | None:
        """Cap on the mean power of all GPUs of a job: the site's, or what the fullest node allows each of its GPUs."""
        by_node = None if self.node_w is None else self.node_w * gpus / min(gpus, gpus_per_node)
        by_gpu = None if self.gpu_w is None else self.gpu_w * gpus  # the lowest clock may draw more
        caps = [cap for cap in (self.site_w, by_node, by_gpu) if cap is not None]
        return min(caps, default=None)

    def iteration_s(self, tokens_per_iteration: int) -> float | None:
        """Most time of an iteration, so that the training keeps its deadline."""
        if self.deadline_s is None or self.tokens is None:
            return None
        return self.deadline_s * tokens_per_iteration / self.tokens

    def selectors(self, time_s: float, cap_w: float | None, most_s: float | None) -> Iterator[str]:
        """Yield selectors by which `kareus plan` may choose the plan that is wanted, the plainest first.

        Args:
            time_s: of the whole training, for the mean of prices by the hour.
            cap_w: most mean power of all GPUs.
            most_s: most time of an iteration.
        """
        match self.minimised:
            case Least.TIME:
                yield Goal.FASTEST
            case Least.ENERGY:
                yield Goal.MIN_ENERGY
            case Least.EDP:
                yield Goal.EDP
            case Least.COST:
                paid = {"perkWh": self.price_per_kwh, "perGPUh": self.price_per_gpu_hour}
                prices = [f"{_mean(p, time_s):.6g}{self.currency}{of}" for of, p in paid.items() if p is not None]
                yield f"{Goal.COST}={'+'.join(prices)}"
        if cap_w is not None:
            yield f"{Goal.POWER}={cap_w / POWERS['kW']:.6g}kW"
        if most_s is not None:
            yield f"{Goal.DEADLINE}={most_s:.6g}s"

    def money(self, time_s: float, energy_j: float, gpus: int) -> float | None:
        """What so much time on the GPUs and so much energy cost; None where no price is given."""
        if self.price_per_kwh is None and self.price_per_gpu_hour is None:
            return None
        per_kwh = 0.0 if self.price_per_kwh is None else _mean(self.price_per_kwh, time_s)
        hours = time_s / SECONDS_PER_HOUR
        return energy_j / JOULES_PER_KWH * per_kwh + hours * gpus * (self.price_per_gpu_hour or 0.0)

    def carbon_kg(self, time_s: float, energy_j: float) -> float | None:
        """CO2 of so much energy, used evenly over so much time; None where no intensity is given."""
        if self.carbon_g_per_kwh is None:
            return None
        return energy_j / JOULES_PER_KWH * _mean(self.carbon_g_per_kwh, time_s) / 1e3


def _span(time_s: float) -> str:
    return f"{time_s:g} s" if time_s < SECONDS_PER_HOUR else duration(time_s)


def _mean(value: float | HourlySeries, time_s: float) -> float:
    """Mean of a series over its first hours, which repeat when it ends."""
    if not isinstance(value, HourlySeries):
        return value
    hours, series = time_s / SECONDS_PER_HOUR, value.values
    rounds, rest = divmod(hours, len(series))
    whole = int(rest)
    begun = (rest - whole) * series[whole % len(series)]  # the last hour counts for as much of it as is used
    return (rounds * sum(series) + sum(series[:whole]) + begun) / hours


def quantity(option: str, text: str, units: dict[str, float], most: float) -> float:
    """Return a number with a unit, in the base unit.

    Raises:
        ConfigError: it is not a positive number, or the unit is not known; with what is nearest.
    """
    match = re.fullmatch(rf"({NUMBER})\s*([A-Za-z]*)", text.strip())
    example = f"{option} 30{list(units)[-1]}"
    if match is None:
        raise ConfigError(f"{option} {text}: not a number and a unit; write {example}.")
    if match[2] not in units:
        same = [unit for unit in units if unit.lower() == match[2].lower()]
        hint = f"perhaps you meant {match[1]}{same[0]}" if same else suggest(match[2], units)
        raise ConfigError(f"{option} {text}: {f'unknown unit {match[2]!r}' if match[2] else 'has no unit'}; {hint}.")
    value = number_in(match[1]) * units[match[2]]
    if not 0 < value <= most:
        raise ConfigError(f"{option} {text}: must be greater than 0 and at most {most:g} {next(iter(units))}.")
    return value


def price(option: str, text: str, unit: Unit) -> tuple[float | HourlySeries, str]:
    """Return a price or an intensity of a kilowatt-hour, such as `0.12perkWh`, or a series by the hour from a CSV file.

    Args:
        option: that gives it, for messages.
        text: number and unit, with the currency of a price (`0.12EURperkWh`) or without, or the path of a file.
        unit: quantity that is given.

    Returns:
        The value or the series, and the currency, empty where none is named.

    Raises:
        ConfigError: it is neither.
    """
    if text.endswith(".csv") or Path(text).is_file():
        series = read_series(Path(text))
        if series.unit is not unit:
            raise ConfigError(f"{option} {text}: has the column {series.unit}; expected {unit}.")
        return series, series.currency
    suffixes = SUFFIXES[unit]
    currency = CURRENCY if unit is Unit.PRICE else "()"
    match = re.fullmatch(rf"({NUMBER})\s*{currency}(\S*)", text.strip())
    if match is None or match[3] not in suffixes:
        paid = match[2] or "" if match else ""
        kinds = " or ".join(f"{PLAUSIBLE[unit].usual / factor:g}{paid}{suffix}" for suffix, factor in suffixes.items())
        raise ConfigError(
            f"{option} {text}: not understood; write {kinds}, or a CSV file with the columns hour,{unit}, or one that "
            "Electricity Maps, WattTime or ENTSO-E export."
        )
    value = number_in(match[1]) * suffixes[match[3]]
    if not value >= 0:
        raise ConfigError(f"{option} {text}: must be 0 or more.")
    check_plausible(option, text, unit, value)
    return value, match[2] or ""


def _gpu_price(text: str) -> tuple[float, str]:
    """Return the price of an hour of a GPU, such as `2.5perGPUh` or `2.5EURperGPUh`, and its currency.

    Raises:
        ConfigError: it is not one.
    """
    match = re.fullmatch(rf"({NUMBER})\s*{CURRENCY}(\S*)", text.strip())
    if match is None or match[3] != "perGPUh":
        raise ConfigError(f"--gpu-price {text}: not understood; write 2.5{match[2] or '' if match else ''}perGPUh.")
    value = number_in(match[1])
    if not 0 <= value <= MOST_PRICE:
        raise ConfigError(f"--gpu-price {text}: must be from 0 to {MOST_PRICE:g}.")
    return value, match[2] or ""


def goals_of(
    *,
    least: str | None = None,
    tokens: float | None = None,
    deadline: str | None = None,
    max_power: str | None = None,
    max_node_power: str | None = None,
    max_gpu_power: str | None = None,
    price_of_energy: str | None = None,
    gpu_price: str | None = None,
    carbon: str | None = None,
) -> Goals:
    """Return the goals that options give, each as on the command line.

    Raises:
        ConfigError: one cannot be used, in one line with what is nearest.
    """
    if least is not None and least not in set(Least):
        raise ConfigError(f"--least {least}: not known; {suggest(least, Least)}.")
    per_kwh, of_energy = (None, "") if price_of_energy is None else price("--price", price_of_energy, Unit.PRICE)
    per_gpu_hour, of_gpus = (None, "") if gpu_price is None else _gpu_price(gpu_price)
    if of_energy and of_gpus and of_energy != of_gpus:
        raise ConfigError(f"--price is in {of_energy}, --gpu-price in {of_gpus}; give both in one currency.")
    return Goals(
        least=None if least is None else Least(least),
        tokens=tokens,
        deadline_s=None if deadline is None else quantity("--deadline", deadline, DURATIONS, MOST_S),
        site_w=None if max_power is None else quantity("--max-power", max_power, POWERS, MOST_W),
        node_w=None if max_node_power is None else quantity("--max-node-power", max_node_power, POWERS, MOST_W),
        gpu_w=None if max_gpu_power is None else quantity("--max-gpu-power", max_gpu_power, POWERS, MOST_W),
        price_per_kwh=per_kwh,
        price_per_gpu_hour=per_gpu_hour,
        currency=of_energy or of_gpus,
        carbon_g_per_kwh=None if carbon is None else price("--carbon", carbon, Unit.CARBON)[0],
    )
