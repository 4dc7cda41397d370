"""Mutations of bytes, of JSON documents and of CSV cells, drawn from what parsers stumble over."""

import copy
import json
import random
from typing import Any

NUMBERS = (
    "0", "-0.0", "-1", "1e308", "1e400", "-1e400", "1e-308", "5e-324", "NaN", "inf", "-Infinity", "9" * 400, "0x10",
    "1_000", "٣", "1,5", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "1e5", "0.1.2",
    "+-1",
    "200000000", "1000000000000", "٣.٣", "1e300", "²",
)  # fmt: skip
"""Numbers as texts, odd ones and none at all."""
TEXTS = (
    "", " ", "null", "true", "[", "[" * 5000, "{" * 5000, "{}", "x" * 100_000, "\x00", "\x1b[31mred", "\r\n", "../../x",
    "{x}", "%s%n", "$(id)", "'", '"', "\\", "\ud800", "\ufeff", "é" * 50, "\u202etxet", "a=b", ",", ";", "#", "~",
    "/dev/null", "\x85", "\u2028",
)  # fmt: skip
"""Texts that break quoting, formats, paths or terminals."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.0, -0.5, 1e308, 1e-308, float("nan"), float("inf"),
    [], {},
    [[]], [None], {"": None}, {"a": {"b": []}},
)  # fmt: skip
"""Values of JSON of another type or range."""


def hostile_text(chance: random.Random) -> str:
    """Return a number or a text of above, or a few of their characters."""
    text = chance.choice(NUMBERS + TEXTS)
    return text if chance.random() < 0.9 else "".join(chance.sample(text, min(len(text), 5)))  # noqa: PLR2004


def hostile_value(chance: random.Random) -> Any:
    """Return a value of JSON that is hardly ever right."""
    return copy.deepcopy(chance.choice(VALUES)) if chance.random() < 0.7 else hostile_text(chance)  # noqa: PLR2004


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return `content` with one to three mutations; never the same."""
    changed = content
    while changed == content:
        for _ in range(chance.randint(1, 3)):
            changed = chance.choice((flipped, _cut, _without, _twice, _with))(changed, chance)
    return changed


def flipped(content: bytes, chance: random.Random) -> bytes:
    """Return `content` with one bit flipped."""
    if not content:
        return b"\x01"
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _without(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    return content[:start] + content[start + chance.randint(1, 50) :]


def _twice(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    part = content[start : start + chance.randint(1, 200)]
    return content[:start] + part + content[start:]


def _with(content: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(content) + 1)
    return content[:start] + hostile_text(chance).encode(errors="surrogatepass") + content[start:]


def mutated_document(document: Any, chance: random.Random) -> Any:
    """Return a JSON document with one to three values changed, removed or added."""
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(_places(document))
        action = chance.randrange(4)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[hostile_text(chance)] = hostile_value(chance)
        elif isinstance(holder[key], float | int) and chance.random() < 0.5:  # noqa: PLR2004
            holder[key] = holder[key] * chance.choice((0.5, 2, -1, 1.0001, 1e6))
        else:
            holder[key] = hostile_value(chance)
        if not _places(document):
            break
    return document


def json_text(document: Any, chance: random.Random) -> bytes:
    """Return a document as JSON text, at times with a number that no parser of 64 bits holds."""
    text = json.dumps(document, indent=1)
    if chance.random() < 0.1:  # noqa: PLR2004
        text = text.replace(": 1", f": {chance.choice(NUMBERS)}", 1)
    return text.encode(errors="surrogatepass")


def mutated_table(text: str, chance: random.Random) -> bytes:
    """Return a CSV text with cells, columns or rows changed."""
    lines = [line.split(",") for line in text.splitlines()]
    for _ in range(chance.randint(1, 3)):
        line = chance.choice(lines)
        action = chance.randrange(5)
        if action == 0 and line:
            del line[chance.randrange(len(line))]
        elif action == 1:
            lines.append(list(line))
        else:
            line[chance.randrange(len(line)) if line else 0 :][:1] = [hostile_text(chance)]
            if line:
                line[chance.randrange(len(line))] = hostile_text(chance)
    return "\n".join(map(",".join, lines)).encode(errors="surrogatepass")


def _places(document: Any) -> list[tuple[Any, Any]]:
    """All places of a document that hold a value: container and key."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    own = [(document, key) for key, _ in items]
    values = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return own + [place for value in values for place in _places(value)]
