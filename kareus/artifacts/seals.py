"""Seals: a hash inside a JSON document by which edits and damage are detected.

A seal detects damage and edits. It is no signature: who has this code can seal anything.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from kareus.artifacts.records import canonical_json, json_of_plain
from kareus.errors import ConfigError

KEY = "seal"
"""Name under which a document holds its seal."""
SEAL_LENGTH = 32
"""Number of characters of a seal."""
_COMMENT = "# seal: "


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return `document` with its seal as the last key.

    Args:
        document: plain data, as `to_plain` returns it, without a seal.
    """
    return {**document, KEY: _seal(document)}


def unsealed(document: Any) -> dict[str, Any]:
    """Return `document`, as parsed from JSON, without its seal.

    Raises:
        ConfigError: the document has no seal, or was changed after it was sealed.
    """
    if not isinstance(document, dict) or KEY not in document:
        raise ConfigError("has no seal: not written by this version of Kareus, or damaged")
    content = {key: value for key, value in document.items() if key != KEY}
    if document[KEY] != _text_seal(json_of_plain(content)):
        raise ConfigError("was edited or damaged after it was written: its seal does not fit")
    return content


def sealed_text(text: str) -> str:
    """Return `text`, in a language with `#` comments, with its seal as the last line."""
    return f"{text}{_COMMENT}{_text_seal(text)}\n"


def check_text(text: str) -> None:
    """Check that a text is one that `sealed_text` returned.

    Raises:
        ConfigError: it has no seal, or is not the one that was sealed.
    """
    content, mark, seal = text.rpartition(_COMMENT)
    if not mark:
        raise ConfigError("has no seal: not written by this version of Kareus, or damaged")
    if seal != f"{_text_seal(content)}\n":
        raise ConfigError("was edited or damaged after it was written: its last line, the seal, does not fit")


def check_text_if_sealed(text: str) -> None:
    """Check the seal of a text that has one; a text written by hand has none.

    Raises:
        ConfigError: it is not the text that was sealed.
    """
    if has_seal(text):
        check_text(text)


def has_seal(text: str) -> bool:
    """Return whether a text has a seal, be it the right one or not."""
    return _COMMENT in text


def _text_seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:SEAL_LENGTH]


def _seal(document: Mapping[str, Any]) -> str:
    return _text_seal(canonical_json(document))
