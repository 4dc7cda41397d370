"""Seals: a hash inside a JSON document that tells a document as it was written from an edited or damaged one.

A seal detects damage and edits. It is no signature: who has this code can seal anything.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from kareus.artifacts.records import canonical_json
from kareus.errors import ConfigError

KEY = "seal"
"""Name under which a document holds its seal."""


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return `document` with its seal as the last key.

    Args:
        document: plain data, as `to_plain` returns it, without a seal.
    """
    return {**document, KEY: _seal(document)}


def unsealed(document: Any) -> dict[str, Any]:
    """Return `document`, as parsed from JSON, without its seal.

    Raises:
        ConfigError: the document has no seal, or is not the one that was sealed.
    """
    if not isinstance(document, dict) or KEY not in document:
        raise ConfigError("has no seal: not written by this version of Kareus, or damaged")
    content = {key: value for key, value in document.items() if key != KEY}
    if document[KEY] != _seal(content):
        raise ConfigError("was edited or damaged after it was written: its seal does not fit")
    return content


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:32]
