"""The published JSON Schema of plan files, generated from the records so that it cannot drift from them.

Kareus itself reads plans by the records (`kareus.artifacts.records.from_plain`), which know the same limits.
"""

import dataclasses
import types
import typing
from enum import Enum
from typing import Annotated, Any

from kareus.artifacts.provenance import TESTBED_KINDS
from kareus.artifacts.seals import KEY as SEAL
from kareus.plans.document import PLAN_SCHEMA_VERSION, Plan

JsonSchema = dict[str, Any]

_SCALARS: dict[type, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}


def plan_schema() -> JsonSchema:
    """JSON Schema (draft 2020-12) of a plan file."""
    schema = _record(Plan)
    schema["properties"]["schema_version"] = {"const": PLAN_SCHEMA_VERSION}
    schema["properties"]["testbed"]["properties"]["kind"] = {"enum": list(TESTBED_KINDS)}
    schema["properties"][SEAL] = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
    schema["required"].append(SEAL)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kareus plan"} | schema


def _record(cls: type[Any]) -> JsonSchema:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {
        "type": "object",
        "properties": {f.name: _type(hints[f.name]) for f in dataclasses.fields(cls)},
        "required": [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING],
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
