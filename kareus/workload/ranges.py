"""Ranges that the numbers of a configuration must keep to; errors name the key, its value and what is allowed."""

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
