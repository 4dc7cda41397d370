"""Numbers in words, the same on the terminal and on pages: units that scale to values, and what is saved.

A cap of 0.008 MW reads 8 kW. `less` in `report/static/page.js` is the twin of `less` here.
"""

PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"))
SAME_PERCENT = 0.05
"""Differences below this are none."""
WHOLE_PERCENT = 10
"""Differences from here on are whole percents; smaller ones have one decimal."""


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


def less(reduction_percent: float, of: str) -> str:
    """Return a reduction in words, such as `16 % less time`, `2.5 % more energy` or `0 % less time`."""
    size = abs(reduction_percent)
    if size < SAME_PERCENT:
        return f"0 % less {of}"
    return f"{rounded(size)} % {'less' if reduction_percent > 0 else 'more'} {of}"


def rounded(percent: float) -> str:
    """Return a percentage as `less` writes it."""
    return f"{percent:.{0 if abs(percent) >= WHOLE_PERCENT - SAME_PERCENT else 1}f}"


def _prefix(value: float) -> tuple[float, str]:
    return next(((factor, prefix) for factor, prefix in PREFIXES if value >= factor), (1.0, ""))
