"""The published JSON Schema of plan files, generated from the records so that it cannot drift from them."""

import dataclasses
import types
import typing
from typing import Any

from kareus.plan.document import PLAN_SCHEMA_VERSION, Plan

JsonSchema = dict[str, Any]

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def plan_schema() -> JsonSchema:
    """JSON Schema (draft 2020-12) of a plan file."""
    schema = _record(Plan)
    schema["properties"]["schema_version"] = {"const": PLAN_SCHEMA_VERSION}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kareus plan"} | schema


def _record(cls: type[Any]) -> JsonSchema:
    hints = typing.get_type_hints(cls)
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
    return {"type": _SCALARS[hint]}
