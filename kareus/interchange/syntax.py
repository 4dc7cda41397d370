"""Settings of a file, by key: of shell scripts and lists of arguments, YAML, JSON and TOML."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.artifacts.configuration import parse_yaml
from kareus.artifacts.files import read_bytes
from kareus.artifacts.records import parse_json
from kareus.errors import ConfigError
from kareus.interchange.shell import read_arguments

MOST_BYTES = 10_000_000
"""Largest size of a file; those of trainers have thousands."""
MOST_DIGITS = 32
"""Longest text that is a number."""
MOST_REFERENCES = 10
"""References that lead to each other; more go in circles."""
SHELL = "shell"
SYNTAXES = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
"""Syntaxes by the ends of names; other files are scripts or lists of arguments."""
PARSERS: Mapping[str, Callable[[str], Any]] = {"json": parse_json, "toml": tomllib.loads, "yaml": parse_yaml}
REFERENCE = re.compile(r"\$\{\.?([A-Za-z_][\w.]*)\}")
"""A text that stands for the value of another key (OmegaConf)."""
NUMBER = re.compile(r"[+-]?(\d[\d_]*)(\.\d*)?([eE][+-]?\d+)?|[+-]?\.\d+([eE][+-]?\d+)?")
SCALARS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None, "~": None, "": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """What a file sets."""

    syntax: str
    """`shell`, `yaml`, `json` or `toml`."""
    values: Mapping[str, Any]
    """Plain values by dotted key; dashes of options are underscores."""
    unknown: tuple[str, ...] = ()
    """Variables, conditions and references that could not be followed."""
    repeated: tuple[str, ...] = ()
    """Options that are given more than once, with their values: trainers take the last."""


def read_settings(path: Path) -> SettingsFile:
    """Read a file in the syntax that its name and its text tell.

    Raises:
        ConfigError: the file cannot be read, or is not in that syntax.
    """
    syntax = SYNTAXES.get(path.suffix.lower(), SHELL)
    try:
        text = _text(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; give a script or configuration that you train with.") from error
    try:
        return parse_settings(text, syntax)
    except ConfigError as error:
        ends = f"in {path.suffix}" if syntax != SHELL else f"in none of {', '.join(SYNTAXES)}"
        raise ConfigError(
            f"{path}: {str(error).rstrip('.')}; it is read as {syntax} because its name ends {ends}: correct the file "
            "or its name, or give a script or configuration that you train with."
        ) from error


def parse_settings(text: str, syntax: str) -> SettingsFile:
    """Return what a text in a syntax sets.

    Raises:
        ConfigError: it is not in that syntax.

    Example:
        >>> parse_settings("training.seq_len = 8192", "toml").values
        {'training.seq_len': 8192}
    """
    if syntax == SHELL:
        return _shell(text)
    try:
        content = PARSERS[syntax](text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"not valid TOML ({error})") from error
    return _flat(syntax, content)


def _text(path: Path) -> str:
    try:
        content = read_bytes(path, MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"has more than {MOST_BYTES:,} bytes, which no file of settings has")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError("not a text file in UTF-8") from None


def _shell(text: str) -> SettingsFile:
    arguments = read_arguments(text)
    values = {_key(name): _words(words) for name, words in arguments.values.items()}
    repeated = (
        f"{_key(name)} ({', then '.join(' '.join(words) or 'nothing' for words in given)})"
        for name, given in arguments.repeated.items()
    )
    return SettingsFile(syntax="shell", values=values, unknown=arguments.unknown, repeated=tuple(repeated))


def _key(option: str) -> str:
    return option.lower().replace("-", "_")


def _words(words: list[str]) -> Any:
    if not words:
        return True
    return scalar(words[0]) if len(words) == 1 else [scalar(word) for word in words]


def scalar(text: str) -> Any:
    """Return the number, the truth value or the text that a word is.

    Example:
        >>> [scalar(text) for text in ("8", "1e-5", "True", "rope")]
        [8, 1e-05, True, 'rope']
    """
    text = text.strip("\"'")
    if text.lower() in SCALARS:
        return SCALARS[text.lower()]
    if not NUMBER.fullmatch(text) or len(text) > MOST_DIGITS:
        return text
    digits = text.replace("_", "")
    return float(digits) if set(digits) & set(".eE") else int(digits)


def _flat(syntax: str, content: Any) -> SettingsFile:
    if not isinstance(content, Mapping):
        raise ConfigError("has no keys and values at its top")
    leaves = dict(_leaves(content, ""))
    unknown: dict[str, None] = {}
    values = {key: _followed(key, value, leaves, unknown) for key, value in leaves.items()}
    return SettingsFile(syntax=syntax, values=values, unknown=tuple(unknown))


def _leaves(content: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield plain values by dotted key; lists of mappings are taken apart by number."""
    for name, value in content.items():
        key = prefix + str(name).removeprefix("--").replace("-", "_")
        items = value
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            items = dict(enumerate(value))
        if isinstance(items, Mapping) and items:
            yield from _leaves(items, f"{key}.")
        else:
            yield key, scalar(value) if isinstance(value, str) else value


def _followed(key: str, value: Any, leaves: Mapping[str, Any], unknown: dict[str, None]) -> Any:
    """Return what a value stands for; nothing where it names a key that the file does not have."""
    folder = key.rpartition(".")[0]
    for _ in range(MOST_REFERENCES):
        if not isinstance(value, str) or "${" not in value:
            return value
        named = REFERENCE.fullmatch(value)
        names = [named[1], f"{folder}.{named[1]}"] if named else []
        other = next((name for name in names if name in leaves), None)
        if other is None:
            break
        value = leaves[other]
    unknown[f"{key}: {value}"] = None
    return None
