"""Values of a Hugging Face `config.json`, each checked for its type."""

import json
import sys
from collections.abc import Iterator, Mapping
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


def mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping that a key has; an empty one for null."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}={value!r}: expected keys and values.")
    return value


class ModelFile(Mapping[str, Any]):
    """The keys of a file over the defaults of its type; notes which keys are read."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.given, self.defaults = given, defaults
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.given[key] if key in self.given else self.defaults[key]

    def __contains__(self, key: object) -> bool:
        return key in self.given or key in self.defaults

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.given, *self.defaults)))

    def __len__(self) -> int:
        return len(self.given.keys() | self.defaults.keys())
