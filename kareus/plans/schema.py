"""The published JSON Schema of plan files, generated from the records so that it cannot drift from them."""

import dataclasses
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

from kareus.artifacts.provenance import TESTBED_KINDS
from kareus.artifacts.seals import KEY as SEAL
from kareus.pipeline.methods import METHODS
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan

JsonSchema = dict[str, Any]

_SCALARS: dict[type, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
"""Whole numbers of a plan count or number something."""


def plan_schema() -> JsonSchema:
    """JSON Schema (draft 2020-12) of a plan file."""
    schema = _record(Plan)
    schema["properties"]["schema_version"] = {"const": PLAN_SCHEMA_VERSION}
    schema["properties"]["method"] = {"enum": [method.name for method in METHODS]}
    schema["properties"]["testbed"]["properties"]["kind"] = {"enum": list(TESTBED_KINDS)}
    schema["properties"][SEAL] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
    schema["required"].append(SEAL)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kareus plan"} | schema


def follows(schema: JsonSchema, value: Any) -> bool:
    """Return whether parsed JSON follows a schema of this module's, without jsonschema, which takes long to import.

    What it accepts, jsonschema accepts; the reverse does not hold for whole numbers that are written as `1.0`.
    """
    return all(_CHECKS[keyword](schema, value) for keyword in schema if keyword not in _ANNOTATIONS)


def _follows_type(schema: JsonSchema, value: Any) -> bool:
    return type(value) in _TYPES[schema["type"]]


def _follows_properties(schema: JsonSchema, value: Any) -> bool:
    known = schema["properties"]
    return isinstance(value, dict) and all(key in known and follows(known[key], value[key]) for key in value)


_ANNOTATIONS = {"$schema", "title", "additionalProperties"}
"""Keywords without a check of their own; `additionalProperties` is always false, which `properties` checks."""

_TYPES: dict[str, set[type]] = {
    "object": {dict},
    "array": {list},
    "string": {str},
    "integer": {int},
    "number": {int, float},
    "boolean": {bool},
    "null": {type(None)},
}

_CHECKS: dict[str, Callable[[JsonSchema, Any], bool]] = {
    "type": _follows_type,
    "properties": _follows_properties,
    "required": lambda schema, value: isinstance(value, dict) and value.keys() >= set(schema["required"]),
    "items": lambda schema, value: isinstance(value, list) and all(follows(schema["items"], item) for item in value),
    "anyOf": lambda schema, value: any(follows(option, value) for option in schema["anyOf"]),
    "const": lambda schema, value: type(value) is type(schema["const"]) and value == schema["const"],
    "enum": lambda schema, value: isinstance(value, str) and value in schema["enum"],
    "pattern": lambda schema, value: isinstance(value, str) and re.search(schema["pattern"], value) is not None,
    "minimum": lambda schema, value: isinstance(value, (int, float)) and value >= schema["minimum"],
    "exclusiveMinimum": lambda schema, value: isinstance(value, (int, float)) and value > schema["exclusiveMinimum"],
}
"""By keyword of the schemas of this module, whether a value follows it."""


def _record(cls: type[Any]) -> JsonSchema:
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [f.name for f in dataclasses.fields(cls)]
    return {
        "type": "object",
        "properties": {name: _type(hints[name]) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _type(hint: Any) -> JsonSchema:
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type[Any], hint))
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _type(typing.get_args(hint)[0])}
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return {"anyOf": [_type(a) if a is not type(None) else {"type": "null"} for a in typing.get_args(hint)]}
    if typing.get_origin(hint) is Annotated:
        plain, limits = typing.get_args(hint)
        return {**_type(plain), **limits}
    if issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return dict(_SCALARS[hint])
