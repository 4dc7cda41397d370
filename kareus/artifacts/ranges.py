"""Ranges that the numbers of a configuration must keep to; errors name the key, its value and what is allowed.

Every number has two bounds. They are generous, beyond any machine, model or run of today, and keep loops, tables and
the solver from numbers that mean a slip of the keyboard or of a unit: a time of 1e300 s, a billion GPUs in a node.
"""

from typing import Any

from kareus.errors import ConfigError


def positive(record: Any, *names: str) -> None:
    """Raise `ConfigError` unless every named field is greater than 0."""
    for name in names:
        value = getattr(record, name)
        if value <= 0:
            raise ConfigError(f"{name}={value}: must be greater than 0.")


def share(record: Any, *names: str) -> None:
    """Raise `ConfigError` unless every named field is greater than 0 and at most 1."""
    for name in names:
        value = getattr(record, name)
        if not 0 < value <= 1:
            raise ConfigError(f"{name}={value}: must be greater than 0 and at most 1.")


def not_negative(record: Any, *names: str) -> None:
    """Raise `ConfigError` unless every named field is 0 or more."""
    for name in names:
        value = getattr(record, name)
        if value < 0:
            raise ConfigError(f"{name}={value}: must be 0 or more.")


def within(record: Any, least: float, most: float, unit: str, *names: str) -> None:
    """Raise `ConfigError` unless every named field is from `least` to `most`.

    Args:
        record: what has the fields.
        least: 0 or more, or less than 0 where a number may be negative.
        most: largest number that is allowed.
        unit: of the numbers, for the message.
        names: of the fields.
    """
    for name in names:
        value = getattr(record, name)
        if least <= value <= most:
            continue
        if least > 0:
            positive(record, name)
        elif least == 0:
            not_negative(record, name)
        check_within(name, value, least, most, unit)


def check_within(name: str, value: float, least: float, most: float, unit: str) -> None:
    """Raise `ConfigError` unless one number, such as an item of a list, is from `least` to `most`."""
    if not least <= value <= most:
        raise ConfigError(f"{name}={value}: must be from {_shown(least)} to {_shown(most)} ({unit}).")


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
