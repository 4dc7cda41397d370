"""Values of a Hugging Face `config.json`, each checked for its type."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from kareus.errors import ConfigError


def number(config: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """Return a number greater than 0.

    Raises:
        ConfigError: there is none.
    """
    value = config.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise ConfigError(f"{key}={value!r}: expected a number greater than 0.")
    return float(value)


def integer(config: Mapping[str, Any], key: str) -> int:
    """Return a whole number greater than 0.

    Raises:
        ConfigError: there is none.
    """
    value = config.get(key)
    if value is None:
        raise ConfigError(f"'{key}' is missing; expected the config.json of a Hugging Face model.")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{key}={value!r}: expected a whole number greater than 0.")
    return value


def boolean(config: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    """Return true or false; `default` where there is nothing.

    Raises:
        ConfigError: it is something else.
    """
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"{key}={value!r}: expected true or false, without quotes.")
    return value


def listed(config: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list; an empty one if there is none.

    Raises:
        ConfigError: it is something else.
    """
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{key}={value!r}: expected a list.")
    return value


def check_values(config: Mapping[str, Any], expected: Mapping[str, tuple[Any, ...]]) -> None:
    """Check that the keys of `expected`, where they are given, have values that change nothing.

    Raises:
        ConfigError: one has another value.
    """
    for key, neutral in expected.items():
        value = config.get(key)
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            listed = " or ".join(json.dumps(n) for n in (*neutral, None))
            raise ConfigError(f"{key}={value!r}: changes the architecture and is not supported; expected {listed}.")
