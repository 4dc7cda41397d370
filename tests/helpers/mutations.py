"""Hypothesis strategies that spoil bytes, JSON documents and CSV tables, by what parsers stumble over."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NUMBERS = (
    "0", "-0.0", "-1", "1e308", "1e400", "-1e400", "5e-324", "NaN", "inf", "-Infinity", "9" * 400, "0x10", "1_000",
    "٣", "1,5", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "0.1.2", "+-1",
    "200000000", "1000000000000", "²",
)  # fmt: skip
"""Numbers as texts, odd ones and none at all."""
TEXTS = (
    "", " ", "null", "true", "[", "[" * 5000, "{" * 5000, "{}", "x" * 100_000, "\x00", "\x1b[31mred", "\r\n", "../../x",
    "{x}", "%s%n", "$(id)", "'", '"', "\\", "\ufeff", "é" * 50, "\u202etxet", "a=b", ",", ";", "#", "~", "/dev/null",
    "\x85", "\u2028",
)  # fmt: skip
"""Texts that break quoting, formats, paths or terminals."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, 2**64, 10**30, -0.5, 1e308, 1e-308, float("nan"), float("inf"), [], {},
    [[]], [None], {"": None}, {"a": {"b": []}},
)  # fmt: skip
"""Values of JSON of another type or range."""

hostile_texts = st.sampled_from(NUMBERS + TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_hostile_values = st.sampled_from(VALUES) | hostile_texts


@st.composite
def spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes with one to three bits flipped, parts cut, lost or doubled, or texts put in between."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        before, part, after = content[:at], content[at : at + draw(st.integers(1, 200))], content[at:]
        edit = draw(st.sampled_from(("flip", "flip", "cut", "lose", "double", "insert")))
        if edit == "flip":
            content = before + bytes([(after or b"\0")[0] ^ 1 << draw(st.integers(0, 7))]) + after[1:]
        elif edit == "insert":
            content = before + draw(hostile_texts).encode() + after
        else:
            content = {"cut": before, "lose": before + after[len(part) :], "double": before + part + after}[edit]
    return content


@st.composite
def spoilt_json(draw: st.DrawFn, document: Any) -> bytes:
    """The text of a document with one to three values changed, removed or added."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            break
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        action = draw(st.sampled_from(("remove", "add", "scale", "replace")))
        if action == "remove":
            del holder[key]
        elif action == "add" and isinstance(holder, dict):
            holder[draw(hostile_texts)] = copy.deepcopy(draw(_hostile_values))
        elif action == "scale" and isinstance(holder[key], float | int):
            holder[key] = holder[key] * draw(st.sampled_from((0.5, 2, -1, 1.0001, 1e6)))
        else:
            holder[key] = copy.deepcopy(draw(_hostile_values))
    return json.dumps(document, indent=1).encode()


@st.composite
def spoilt_csv(draw: st.DrawFn, text: str) -> bytes:
    """A CSV text with one to three cells or rows changed, lost or doubled."""
    lines = [line.split(",") for line in text.splitlines()]
    for _ in range(draw(st.integers(1, 3))):
        line = lines[draw(st.integers(0, len(lines) - 1))]
        at = draw(st.integers(0, max(0, len(line) - 1)))
        action = draw(st.sampled_from(("cell lost", "row doubled", "cell", "cell")))
        if action == "row doubled":
            lines.append(list(line))
        else:
            line[at : at + 1] = [draw(hostile_texts)] if action == "cell" else []
    return "\n".join(map(",".join, lines)).encode()


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """All places of a document that hold a value: container and key."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield document, key
            yield from _places(value)
