"""Selectors: how a user names the point of the frontier that they want.

The same text on the command line and in file names: `fastest`, `min-energy`, `edp`, `deadline=4.6s`, `straggler=1.15x`,
`energy=20kJ`, `power=4kW`, `ramp=2kWpers`, `floor=3kW`, `swing=25percent`, `cost=0.12perkWh+2.5perGPUh`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import polars as pl

from kareus.artifacts.records import closest
from kareus.errors import ConfigError
from kareus.pareto import as_fast_s
from kareus.plans.series import SUFFIXES, Unit, check_plausible
from kareus.plans.units import JOULES_PER_KWH, SECONDS_PER_HOUR, scaled

UNITS = {
    "deadline": {"ms": 1e-3, "s": 1.0, "min": 60.0},
    "straggler": {"x": 1.0},
    "energy": {"J": 1.0, "kJ": 1e3, "MJ": 1e6},
    "power": {"W": 1.0, "kW": 1e3, "MW": 1e6},
    "ramp": {"W/s": 1.0, "kW/s": 1e3, "MW/s": 1e6},
    "floor": {"W": 1.0, "kW": 1e3, "MW": 1e6},
    "swing": {"%": 1e-2},
}
EXAMPLES = {
    "deadline": "5.2s",
    "straggler": "1.15x",
    "energy": "20kJ",
    "power": "4kW",
    "ramp": "2kW/s",
    "floor": "3kW",
    "swing": "25%",
}
RANGES = {
    "deadline": (1e-6, 1e9),
    "straggler": (0, 1e6),
    "energy": (1e-6, 1e18),
    "power": (1e-6, 1e12),
    "ramp": (1e-6, 1e12),
    "floor": (1e-6, 1e12),
    "swing": (1e-4, 10),
}
"""Limits in base units, far beyond those of any iteration on both sides."""
SPELLED = (("/s", "pers"), ("%", "percent"))
"""Units, and how they are spelled in names of files and jobs, which take no such signs."""
LIMIT_DIGITS = 4
"""Significant digits of limits in messages."""
MOST_PRICE = 1e9
"""Of an hour of a GPU, in any currency."""
MOST_CHARACTERS = 64
"""Of a selector, which is part of the name of its plan's file."""
NUMBER = r"[0-9.]+(?:[eE][+-]?[0-9]+)?"


class Goal(StrEnum):
    """What a selector asks for."""

    FASTEST = "fastest"
    """The least energy within the least time and the little more (`AS_FAST`) that measuring cannot tell from it."""
    MIN_ENERGY = "min-energy"
    """The least energy, whatever the time."""
    EDP = "edp"
    """The least product of energy and time (energy-delay product)."""
    DEADLINE = "deadline"
    """The least energy within a time."""
    STRAGGLER = "straggler"
    """The least energy within a multiple of the least time: what a slower pipeline elsewhere allows (Perseus)."""
    ENERGY = "energy"
    """The least time within an energy."""
    POWER = "power"
    """The least time within a mean power of all GPUs."""
    RAMP = "ramp"
    """As fast as `FASTEST`, with no larger change of power from one second to the next (`grid_power`)."""
    FLOOR = "floor"
    """The same with no less power in any second."""
    SWING = "swing"
    """The same with seconds whose power differs by no more, as a share of the mean."""
    COST = "cost"
    """The least cost of energy and GPU time together."""


PLAIN = tuple(goal for goal in Goal if goal not in {*UNITS, Goal.COST})
"""Goals without a limit or a price."""
ALLOWED = (
    f"allowed: {', '.join(PLAIN)}, deadline=<time> (such as 4.6s or 900ms), straggler=<times the method's least time> "
    "(such as 1.15x), energy=<energy> (such as 20kJ), power=<power of all GPUs> (such as 4kW), ramp=<change of "
    "that from one second to the next> (such as 2kW/s), floor=<least power of a second> (such as 3kW), swing=<what "
    "seconds differ by, of the mean> (such as 25%), cost=<price>perkWh+<price>perGPUh (energy also as <price>perMWh)"
)
MEASURES = {
    Goal.FASTEST: "energy_j",
    Goal.MIN_ENERGY: "energy_j",
    Goal.EDP: "product_js",
    Goal.DEADLINE: "energy_j",
    Goal.STRAGGLER: "energy_j",
    Goal.ENERGY: "time_s",
    Goal.POWER: "time_s",
    Goal.RAMP: "time_s",
    Goal.FLOOR: "time_s",
    Goal.SWING: "time_s",
    Goal.COST: "cost",
}
"""What each goal minimises."""
LIMITED = {
    Goal.FASTEST: ("time_s", "s"),
    Goal.DEADLINE: ("time_s", "s"),
    Goal.STRAGGLER: ("time_s", "s"),
    Goal.ENERGY: ("energy_j", "J"),
    Goal.POWER: ("power_w", "W"),
}
"""What each goal with a limit on time, energy or mean power limits, and its unit."""
OVER_TIME = frozenset({Goal.RAMP, Goal.FLOOR, Goal.SWING})
"""What limits power over an iteration, which follows from the instructions of a plan: `grid_selection` chooses."""


CURRENCY = "(?:[A-Z]{3})?"
"""Of a price: three letters, or nothing."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What a training run is paid by, in any one currency; one of both may be 0."""

    per_kwh: float
    per_gpu_hour: float
    currency: str = ""
    """Three letters; empty where none is named."""

    def cost(self, time_s: float, energy_j: float, gpus: int) -> float:
        """Cost of `gpus` GPUs that take this time and, together, this energy."""
        return energy_j / JOULES_PER_KWH * self.per_kwh + time_s / SECONDS_PER_HOUR * gpus * self.per_gpu_hour


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector."""

    goal: Goal
    limit: float | None = None
    """Seconds for `deadline`, joules for `energy`, watts for `power` and `floor`, watts per second for `ramp`, a share
    of the mean power for `swing`, a multiple of the least time for `straggler`."""
    prices: Prices | None = None
    """For `cost`."""


def spelled(text: str) -> str:
    """Return a selector as names of files and jobs spell it.

    Example:
        >>> spelled("ramp=2kW/s"), spelled("swing=25%"), spelled("deadline=4.8s")
        ('ramp=2kWpers', 'swing=25percent', 'deadline=4.8s')
    """
    for sign, word in SPELLED:
        text = text.replace(sign, word)
    return text


def check_costs_suffice(selector: Selector) -> None:
    """Check that times and energies are enough to choose by a selector.

    Raises:
        ConfigError: it limits power over an iteration.
    """
    if selector.goal in OVER_TIME:
        raise ConfigError(
            f"{selector.goal}: limits how power moves within an iteration, which takes a plan of its instructions; "
            "choose another selector here, such as power=4kW, or select such a plan with `kareus select`."
        )


def parse_selector(text: str) -> Selector:
    """Parse a selector.

    Raises:
        ConfigError: it is not one, or its limit is not a positive number with a unit.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"selector '{text[:MOST_CHARACTERS]}...': has more than {MOST_CHARACTERS} characters; {ALLOWED}."
        )
    name, equals, value = text.partition("=")
    if name in PLAIN and not equals:
        return Selector(Goal(name))
    if name == Goal.COST:
        return Selector(Goal.COST, prices=_prices(text, value))
    if name not in UNITS:
        close = closest(name, list(Goal))
        meant = f"perhaps you meant {close}; " if close else ""
        raise ConfigError(f"selector '{text}': not understood; {meant}{ALLOWED}.")
    match = re.fullmatch(r"([0-9.eE+-]+)([a-zA-Z/%]+)", value)
    unit = {spelled(unit): factor for unit, factor in UNITS[name].items()}.get(spelled(match[2])) if match else None
    if match is None or unit is None:
        raise ConfigError(f"selector '{text}': {_problem(name, value)}, such as {name}={EXAMPLES[name]}.")
    limit = number_in(match[1]) * unit
    if not 0 < limit < math.inf:
        raise ConfigError(
            f"selector '{text}': '{match[1]}' is not a positive number, such as in {name}={EXAMPLES[name]}."
        )
    least, most = RANGES[name]
    if not least <= limit <= most:
        base = next(base for base, factor in UNITS[name].items() if factor == 1)
        raise ConfigError(f"selector '{text}': must be from {least:g} to {most:g} {base}.")
    if name == Goal.STRAGGLER and limit < 1:
        raise ConfigError(f"selector '{text}': no plan is faster than the fastest; give 1x or more, such as 1.15x.")
    return Selector(Goal(name), limit)


def _problem(name: str, value: str) -> str:
    """Return what is wrong with the limit of a selector, and what to write."""
    *others, last = UNITS[name]
    units = f"{', '.join(others)} or {last}" if others else last
    if not value:
        return f"needs a limit; write a number and a unit ({units})"
    if not math.isnan(number_in(value)):
        return f"'{value}' has no unit; write {units} after it"
    if "," in value:
        return f"'{value}' has a comma; write a decimal point"
    number = re.match(r"[0-9.eE+-]+", value)
    if number and not math.isnan(number_in(number[0])):
        return f"'{value[number.end() :]}' is not a unit of it; write {units}"
    return f"'{value}' is not a number and a unit ({units})"


def check_selectors(texts: Sequence[str]) -> None:
    """Check that at least one plan is asked for, and each but once.

    Raises:
        ConfigError: there is none, one is no selector, or two ask for the same.
    """
    if not texts:
        raise ConfigError("select: no selector; give at least one, such as select=fastest.")
    meanings = dict[str, str]()
    for text in texts:
        meaning = _meaning(parse_selector(text))
        if meaning in meanings:
            same = "given twice" if meanings[meaning] == text else f"the same as '{meanings[meaning]}'"
            raise ConfigError(f"select: '{text}' is {same}; leave one of the two out.")
        meanings[meaning] = text


def _meaning(selector: Selector) -> str:
    """What a selector asks for, whatever its units; to 12 digits, since 5200 ms is not quite 5.2 s in floats."""
    prices = selector.prices
    numbers = (prices.per_kwh, prices.per_gpu_hour) if prices else (selector.limit or 0.0,)
    return f"{selector.goal} {' '.join(f'{number:.12g}' for number in numbers)}"


def measures_of(time_s: float, energy_j: float, prices: Prices | None = None, gpus: int = 0) -> dict[str, float]:
    """Return all that selectors minimise and limit, by name: of a plan with this time and energy of all GPUs."""
    measures = {"time_s": time_s, "energy_j": energy_j, "power_w": energy_j / time_s, "product_js": energy_j * time_s}
    return measures if prices is None else {**measures, "cost": prices.cost(time_s, energy_j, gpus)}


def select(selector: Selector, plans: pl.DataFrame, gpus: int) -> int:
    """Return the row of `plans` (time_s, energy_j; a frontier) that `selector` asks for; `limits` plans between rows.

    Args:
        selector: the request.
        plans: rows of one method.
        gpus: GPUs of the whole job, for what a cost is.

    Raises:
        ConfigError: no plan is within the limit; the message says what can be reached. Or it limits power over an
            iteration, of which rows say nothing.
    """
    check_costs_suffice(selector)
    rows = [measures_of(row["time_s"], row["energy_j"], selector.prices, gpus) for row in plans.iter_rows(named=True)]
    measured = pl.DataFrame(rows).with_row_index("row")
    limit = absolute_limit(selector, plans)
    if limit is not None:
        measured = _within(selector.goal, limit, measured)
    return int(measured.sort(MEASURES[selector.goal], "time_s")["row"][0])


def fastest_plan(plans: pl.DataFrame) -> dict[str, Any]:
    """Return the row of the plan that `fastest` asks for, of plans as `select` takes them."""
    return plans.row(select(Selector(Goal.FASTEST), plans, gpus=0), named=True)


def absolute_limit(selector: Selector, plans: pl.DataFrame) -> float | None:
    """The limit in seconds, joules or watts; None where there is none."""
    if selector.goal is Goal.FASTEST:
        return as_fast_s(plans["time_s"])
    if selector.limit is None or selector.goal is not Goal.STRAGGLER:
        return selector.limit
    return selector.limit * min(map(float, plans["time_s"]))


def _within(goal: Goal, limit: float, measured: pl.DataFrame) -> pl.DataFrame:
    limited, unit = LIMITED[goal]
    within = measured.filter(pl.col(limited) <= limit)
    if within.is_empty():
        least, most = min(measured[limited].to_list()), max(measured[limited].to_list())
        raise ConfigError(
            f"{goal}: no plan is within {scaled(limit, unit, digits=LIMIT_DIGITS)}; the least that can be reached is "
            f"{scaled(_rounded_up(least), unit, digits=LIMIT_DIGITS)} (the frontier ends at "
            f"{scaled(most, unit, digits=LIMIT_DIGITS)})."
        )
    return within


def _rounded_up(value: float) -> float:
    """Return a value with `LIMIT_DIGITS` significant digits that is no less: a limit that can be given."""
    step = 10.0 ** (math.floor(math.log10(value)) + 1 - LIMIT_DIGITS)
    return math.ceil(value / step) * step


def _prices(text: str, value: str) -> Prices:
    """Prices such as `0.12perkWh+2.5perGPUh` or `120EURperMWh+2.5EURperGPUh`, or one of both alone."""
    of_energy = rf"(?P<energy>{NUMBER})(?P<first>{CURRENCY})(?P<suffix>{'|'.join(SUFFIXES[Unit.PRICE])})"
    of_time = rf"(?P<time>{NUMBER})(?P<second>{CURRENCY})perGPUh"
    match = re.fullmatch(rf"(?:{of_energy})?(?P<plus>\+)?(?:{of_time})?", value)
    if match is None or bool(match["plus"]) != bool(match["energy"] and match["time"]) or value == "":
        raise ConfigError(
            f"selector '{text}': not understood; write cost=<price>perkWh+<price>perGPUh, such as "
            "cost=0.12perkWh+2.5perGPUh or cost=120EURperMWh+2.5EURperGPUh, or one of both prices alone."
        )
    currencies = [name for name in (match["first"], match["second"]) if name]
    if len(set(currencies)) > 1:
        raise ConfigError(f"selector '{text}': prices are in {' and '.join(currencies)}; give both in one currency.")
    factor = SUFFIXES[Unit.PRICE][match["suffix"]] if match["energy"] else 1.0
    numbers = factor * number_in(match["energy"] or "0"), number_in(match["time"] or "0")
    prices = Prices(*numbers, currency=next(iter(currencies), ""))
    if not 0 < prices.per_kwh + prices.per_gpu_hour < math.inf:
        raise ConfigError(f"selector '{text}': prices must be positive numbers, such as cost=0.12perkWh+2.5perGPUh.")
    check_plausible(f"selector '{text}'", f"{match['energy']}{match['suffix']}", Unit.PRICE, prices.per_kwh)
    if prices.per_gpu_hour > MOST_PRICE:
        raise ConfigError(f"selector '{text}': a price must be at most {MOST_PRICE:g}.")
    return prices


def number_in(text: str) -> float:
    """Return the number that a text is, or NaN, which is in no range."""
    try:
        return float(text)
    except ValueError:
        return math.nan
