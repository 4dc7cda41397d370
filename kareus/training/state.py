"""Nested state, such as an optimizer's, as named tensors and plain JSON: what pickles are used for elsewhere.

Dictionaries with keys that are texts or whole numbers, lists, tuples, scalars, infinities, and tensors anywhere.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_TENSOR, _PAIRS, _TUPLE, _FLOAT = "tensor", "pairs", "tuple", "float"


def to_parts(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Split `state` into copies of its tensors on the CPU, contiguous and by path, and JSON that refers to them by it.

    Raises:
        TypeError: something in it is of another type.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _split(state, "", tensors)


def from_parts(tensors: Mapping[str, Tensor], plain: Any) -> Any:
    """Put together what `to_parts` split."""
    if isinstance(plain, list):
        return [from_parts(tensors, item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, value),) = plain.items()
    if kind == _TENSOR:
        return tensors[value]
    if kind == _FLOAT:
        return float(value)
    if kind == _TUPLE:
        return tuple(from_parts(tensors, item) for item in value)
    return {key: from_parts(tensors, item) for key, item in value}


def _split(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if path in tensors:
            raise TypeError(f"{path}: two tensors have this name")
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()  # safetensors refuses tied tensors
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        return {
            _PAIRS: [[_key(key), _split(item, f"{path}/{key}".lstrip("/"), tensors)] for key, item in value.items()]
        }
    if isinstance(value, list | tuple):
        items = [_split(item, f"{path}/{index}".lstrip("/"), tensors) for index, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{path}: {type(value).__name__} cannot be part of a checkpoint")


def _key(key: Any) -> str | int:
    if not isinstance(key, str | int):
        raise TypeError(f"key {key!r} cannot be part of a checkpoint")
    return key
