"""Records: frozen dataclasses that go to and from plain data (YAML, JSON, Parquet structs), strictly.

A record is the only way in which a value crosses a file. Reading one checks every key and type, and
names the wrong value by its dotted path; nothing is ever evaluated or unpickled.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, TypeVar

from kareus.errors import ConfigError

Record = TypeVar("Record")

Count = Annotated[int, {"minimum": 0}]
"""Types with limits, in the words of JSON Schema; `from_plain` holds them."""
NotNegative = Annotated[float, {"minimum": 0}]
Positive = Annotated[float, {"exclusiveMinimum": 0}]

PLAIN = frozenset((str, int, float, bool, type(None)))
"""Types of plain scalars; not those derived from them, such as enums of texts."""
LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**63 - 1
"""Whole numbers that 64 bits hold."""
MOST_DIGITS = 20
"""Characters of the longest whole number that 64 bits hold, sign included."""
SHORT = 5
"""Characters of a short name."""
MOST_MEANT = 5
"""Names that are offered at once."""
LEFT_OUT = "left out at its default"
ADDED = {LEFT_OUT: True}
"""Metadata of a field that plain data leaves out where it has its default, so that a record that gets the field keeps
the files, names and hashes that it had before."""
MOST_NESTED = 100
"""Levels of lists and objects that JSON may have: far more than files of Kareus, far fewer than recursion bears."""
RENAMED = {
    "testbed.ambient_c": "it is gpu.ambient_c now: the air that cools the GPUs, in degC",
    "activation_checkpointing": "it is recomputation now: stage for true, none for false",
    "parallelism.shard_optimizer": "it is parallelism.sharding now: optimizer for true, none for false",
    "software.logit_bytes": "it follows from software.loss_kernels",
    "emulation.power_caps_w": "it is emulation.power_caps now: watts as 350W, a share of the power limit as 60%",
}
"""What is said of keys of former versions, by dotted path."""


def added_fields(record: Any) -> tuple[str, ...]:
    """Return the names of the fields whose metadata are `ADDED` and that do not have their defaults."""
    fields = (f for f in dataclasses.fields(record) if LEFT_OUT in f.metadata)
    return tuple(f.name for f in fields if getattr(record, f.name) != f.default)


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists and scalars. Records become dicts in field order, enums their values."""
    if type(value) in PLAIN:  # most values are, and what else a value may be takes long to ask
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {f.name: to_plain(item) for f, item in fields if LEFT_OUT not in f.metadata or item != f.default}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[Record], data: Any, where: str = "") -> Record:
    """Build the record `cls` from plain data.

    Args:
        cls: the dataclass to build.
        data: mapping of its fields.
        where: dotted path of `data` in its file, the start of every message.

    Raises:
        ConfigError: an unknown or missing key, or a value of another type or beyond the limits of its own.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or cls.__name__}: expected keys and values, got {data!r}.")
    hints, fields = _hints_and_fields(cls)  # type: ignore[arg-type]  # a class is hashable
    for key in data:
        if key not in fields:
            path = _join(where, str(key))
            raise ConfigError(f"{path}: unknown key; {RENAMED.get(path) or suggest(str(key), fields)}.")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(where, name)}: missing; give it a value.")
    try:
        return cls(**values)
    except ConfigError as error:  # raised by a __post_init__, which does not know the path of the record
        raise type(error)(f"{where}: {error}" if where else str(error)) from error


@functools.cache
def _hints_and_fields(cls: type[Any]) -> tuple[Mapping[str, Any], Mapping[str, dataclasses.Field[Any]]]:
    """Return the types of a record's fields, and its fields, by name."""
    return typing.get_type_hints(cls, include_extras=True), {f.name: f for f in dataclasses.fields(cls)}


def record_types(hint: Any) -> tuple[type[Any], ...]:
    """The records that a field of type `hint` may hold: one, several (a union of records), or none."""
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    members: tuple[Any, ...] = typing.get_args(hint) if union else (hint,)
    return tuple(member for member in members if dataclasses.is_dataclass(member) and isinstance(member, type))


def suggest(name: str, allowed: Iterable[str]) -> str:
    """Return "perhaps you meant ..." when one of `allowed` is close to `name`, else the allowed names."""
    allowed = list(allowed)
    return meant(name, allowed) or f"allowed: {', '.join(sorted(allowed))}"


def meant(name: str, allowed: Iterable[str]) -> str:
    """Return "perhaps you meant ..." with the few of `allowed` that have the words of `name`, a close one; or ""."""
    allowed, lower = list(allowed), name.lower()
    words = set(re.findall(r"\w+", lower))
    longer = [each for each in allowed if words and (each.startswith(lower) or words <= {*re.findall(r"\w+", each)})]
    likely = longer or [each for each in (closest(name, allowed),) if each]
    return f"perhaps you meant {' or '.join(likely)}" if 0 < len(likely) <= MOST_MEANT else ""


def closest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the one of `allowed` that `name` is probably meant to be, or None.

    Short names with numbers that differ in one character, such as b200 and h200, are names of different things.
    """
    allowed = list(allowed)
    begun = [candidate for candidate in allowed if name and candidate.startswith(name)]
    for candidate in begun if len(begun) == 1 else difflib.get_close_matches(name, allowed, n=1):
        differing = sum(a != b for a, b in zip(name, candidate, strict=False))
        is_other = len(name) == len(candidate) <= SHORT and differing == 1 and any(c.isdigit() for c in name)
        if not is_other:
            return candidate
    return None


def differences(before: Any, after: Any) -> dict[str, Any]:
    """Leaves of the plain mapping `after`, by dotted key, that `before` does not hold; a key left out is null in it."""
    old, new = dict(leaves(before)), dict(leaves(after))
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    return changed | {key: None for key in old.keys() - new.keys() if not _is_inside(key, new)}


def _is_inside(key: str, keys: Iterable[str]) -> bool:
    """Whether a dotted key leads to, or through, one of `keys`."""
    return any(key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in keys)


def leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a plain mapping holds by dotted key, which starts with `prefix`."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a record or plain value: sorted keys, no spaces, exact floats."""
    return json_of_plain(to_plain(value))


def json_of_plain(value: Any) -> str:
    """Return the same text of what is plain already, such as parsed JSON, in less than half of the time."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ConfigError: the text is not JSON, is nested too deeply, has a key twice, or has a number that no table holds:
            infinite, none at all (NaN), or a whole number beyond 64 bits.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_json_number,
            parse_float=_json_number,
            parse_int=_json_integer,
            object_pairs_hook=unique_keys,
        )
    except json.JSONDecodeError as error:
        raise ConfigError(f"not valid JSON (line {error.lineno}, {error.msg})") from error
    except RecursionError:
        raise ConfigError("not valid JSON (nested too deeply)") from None
    if text.count("[") + text.count("{") > MOST_NESTED and _is_nested_deeper(value, MOST_NESTED):
        raise ConfigError("not valid JSON (nested too deeply)")
    return value


def content_hash(value: Any) -> str:
    """Return 16 hexadecimal digits that identify the content of a record or plain value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


def _is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects of parsed JSON are nested more than `levels` deep."""
    containers = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        items = (item for c in containers for item in (c.values() if isinstance(c, dict) else c))
        containers = [item for item in items if isinstance(item, (dict, list))]
    return bool(containers)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a mapping; the `object_pairs_hook` of `json.loads`.

    Raises:
        ConfigError: a key is there twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for (key, _), first in zip(pairs, [*values, None], strict=False) if key != first)
        raise ConfigError(f"not valid JSON (the key {twice!r} is there twice)")
    return values


def _json_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ConfigError(f"not valid JSON ({text} is not a finite number)")
    return value


def _json_integer(text: str) -> int:
    if len(text) > MOST_DIGITS or not LEAST_INTEGER <= int(text) <= MOST_INTEGER:
        shown = text if len(text) <= MOST_DIGITS else f"{text[:MOST_DIGITS]}..."
        raise ConfigError(f"not valid JSON ({shown} is beyond 64 bits)")
    return int(text)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        return _convert(_member(arguments, value), value, where)
    if origin in (tuple, dict):
        return _container(hint, value, where)
    if origin is Annotated:
        return _limited(_convert(arguments[0], value, where), arguments[1], where)
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast(type[Any], hint), value, where)
    return _scalar(hint, value, where)


def _member(union: Sequence[Any], value: Any) -> Any:
    """The type of a union that `value` is read as: of several records, the one that knows most of its keys.

    Of those that know as many, the one that misses the fewest.
    """
    members = [member for member in union if member is not type(None)]
    if len(members) == 1:
        return members[0]
    keys = set(value) if isinstance(value, Mapping) else set()

    def unlike(record: Any) -> tuple[int, int]:
        fields = {field.name for field in dataclasses.fields(record)}
        return len(keys - fields), len(fields - keys)

    return min(members, key=unlike)


def _container(hint: Any, value: Any, where: str) -> Any:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(_sequence(value, where)))
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected keys and values, got {value!r}.")
    return {
        _key(arguments[0], key, where): _convert(arguments[1], item, _join(where, str(key)))
        for key, item in value.items()
    }


def _key(hint: Any, key: Any, where: str) -> Any:
    """A key of a mapping; JSON has only texts for keys, so a whole number may come as one."""
    return int(key) if hint is int and isinstance(key, str) and key.isdecimal() else _convert(hint, key, where)


def _sequence(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where}: expected a list, got {value!r}.")
    return value


def _enum(hint: type[Enum], value: Any, where: str) -> Enum:
    try:
        return hint(value)
    except ValueError:
        allowed = [str(member.value) for member in hint]
        raise ConfigError(f"{where}: {value!r} is not known; {suggest(str(value), allowed)}.") from None


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint, value, where)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(value, where)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{where}: expected {hint.__name__}, got {value!r}.")
    return value


def _limited(value: Any, limits: Mapping[str, Any], where: str) -> Any:
    """Return a value within limits in the words of JSON Schema."""
    if value not in limits.get("enum", (value,)):
        raise ConfigError(f"{where}: {value!r} is not known; {suggest(value, limits['enum'])}.")
    if "minimum" in limits and value < limits["minimum"]:
        raise ConfigError(f"{where}: {value!r} is below {limits['minimum']}, the least.")
    if "exclusiveMinimum" in limits and value <= limits["exclusiveMinimum"]:
        raise ConfigError(f"{where}: {value!r} is not above {limits['exclusiveMinimum']}.")
    return value


def _finite(value: float, where: str) -> float:
    if not abs(value) <= sys.float_info.max:  # so written, it refuses NaN too
        raise ConfigError(f"{where}: expected a finite number, got {value!r}.")
    return float(value)
