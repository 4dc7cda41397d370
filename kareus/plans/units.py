"""Numbers in words, the same on the terminal and on pages: units that scale to values, and what is saved.

A cap of 0.008 MW reads 8 kW. What rounds to zero has no sign (`z` in formats). `significant`, `scaled`, `duration`,
`less` and `compared` have twins of these names in `report/static/page.js`.
"""

import math

SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3.6e6
HOURS_PER_DAY = 24
DAYS_PER_YEAR = 365.25
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))
SAME_PERCENT = 0.05
"""Differences below this are none."""
FEW_MONEY = 1000
"""Costs below this have two decimals, larger ones none."""
WHOLE_PERCENT = 10
"""Differences from here on are whole percents; smaller ones have one decimal."""


def significant(value: float, digits: int = 4) -> str:
    """Return a value with at least `digits` significant digits and never an exponent, such as `18.00` or `12,345`."""
    decimals = digits - 1 - math.floor(math.log10(abs(value))) if value else digits - 1
    return f"{value:z,.{max(0, decimals)}f}"


def scaled(value: float, unit: str, *, digits: int = 3) -> str:
    """Return a value with a unit of its size and at least `digits` significant digits, such as `8.00 kW`."""
    factor, prefix = _prefix(abs(value))
    shown = value / factor
    decimals = max(0, digits - len(f"{abs(shown):.0f}"))
    return f"{shown:z,.{decimals}f} {prefix}{unit}"


def duration(time_s: float) -> str:
    """Return a duration of hours and more, such as `12.5 h`, `30.2 days` or `7.78 years`, with three digits."""
    hours = time_s / SECONDS_PER_HOUR
    days = hours / HOURS_PER_DAY
    if abs(days) >= DAYS_PER_YEAR:
        value, unit = days / DAYS_PER_YEAR, "years"
    elif abs(hours) >= 2 * HOURS_PER_DAY:
        value, unit = days, "days"
    else:
        value, unit = hours, "h"
    return f"{value:z,.{max(0, 3 - len(f'{abs(value):.0f}'))}f} {unit}"


def money(amount: float, currency: str = "") -> str:
    """Return an amount, such as `12.50` or `12,345 EUR`; without a currency it is in that of the prices."""
    return f"{amount:z,.{2 if abs(amount) < FEW_MONEY else 0}f} {currency}".rstrip()


def common_scale(values: list[float], unit: str) -> tuple[float, str]:
    """Return the factor and the unit in which the largest of some values reads best."""
    factor, prefix = _prefix(max(map(abs, values), default=1.0))
    return factor, f"{prefix}{unit}"


def less(reduction_percent: float, of: str) -> str:
    """Return a reduction in words, such as `16 % less time`, `2.5 % more energy` or `the same time`."""
    size = abs(reduction_percent)
    if size < SAME_PERCENT:
        return f"the same {of}"
    return f"{rounded(size)} % {'less' if reduction_percent > 0 else 'more'} {of}"


def compared(time: str, energy: str, baseline: str) -> str:
    """Return time and energy, each as `less` says it, beside a baseline.

    Such as `16 % less time and 20 % less energy than sequential`, or `20 % less energy than sequential in the same
    time`.
    """
    is_as_fast, is_as_frugal = time == less(0.0, "time"), energy == less(0.0, "energy")
    if is_as_fast and is_as_frugal:
        return f"the same time and energy as {baseline}"
    if is_as_fast:
        return f"{energy} than {baseline} in {time}"
    if is_as_frugal:
        return f"{time} than {baseline} with {energy}"
    return f"{time} and {energy} than {baseline}"


def rounded(percent: float) -> str:
    """Return a percentage as `less` writes it."""
    return f"{percent:z.{0 if abs(percent) >= WHOLE_PERCENT - SAME_PERCENT else 1}f}"


def _prefix(value: float) -> tuple[float, str]:
    return next(((factor, prefix) for factor, prefix in PREFIXES if value >= factor), (1.0, ""))
