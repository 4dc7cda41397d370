"""Resolved configurations in YAML, whole or the slice that one stage reads."""

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kareus.artifacts.files import read_text
from kareus.artifacts.records import MOST_NESTED, from_plain, to_plain
from kareus.artifacts.seals import check_text_if_sealed
from kareus.errors import ArtifactError, ConfigError

Slice = TypeVar("Slice")
MOST_VALUES = 100_000
"""Values of a YAML file, each alias counted as what it stands for; a few lines of aliases may stand for millions."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Of libyaml where PyYAML has it: ten times as fast, for jobs and runs that do little else."""


def parse_yaml(text: str) -> Any:
    """Parse YAML.

    Raises:
        ConfigError: the text is not YAML, or its aliases stand for too much.
    """
    try:
        check_aliases(text)
        return yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"not valid YAML{f' (line {mark.line + 1})' if mark else ''}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or as many brackets
        raise ConfigError("not valid YAML (a number too long, or lists too deep)") from error


def check_aliases(text: str | bytes) -> None:
    """Check, without building them, that a YAML text stands for no more than its length lets expect.

    Raises:
        ConfigError: its aliases stand for more than `MOST_VALUES`, or a value contains itself; or it has more than
            `MOST_NESTED` brackets in each other, 10,000 of which keep libyaml busy for minutes.
        yaml.YAMLError: the text is not YAML.
    """
    content, depth = text.encode() if isinstance(text, str) else text, 0
    for bracket in re.findall(rb"[][{}]", content):
        depth = depth + 1 if bracket in b"[{" else max(depth - 1, 0)
        if depth > MOST_NESTED:
            raise ConfigError(f"its lists are more than {MOST_NESTED} levels deep")
    if b"&" not in content:
        return
    sizes, opened, counts = dict[str | None, float](), list[str | None](), [0.0]
    for event in yaml.parse(text, Loader=LOADER):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(anchor)
            counts.append(1.0)
        elif isinstance(event, (yaml.CollectionEndEvent, yaml.ScalarEvent, yaml.AliasEvent)):
            count = 1.0
            if isinstance(event, yaml.CollectionEndEvent):
                anchor, count = opened.pop(), counts.pop()
            elif isinstance(event, yaml.AliasEvent):
                count = math.inf if anchor in opened else sizes.get(anchor, 1.0)
            sizes[anchor] = count
            counts[-1] += count
        if counts[-1] > MOST_VALUES:
            raise ConfigError(f"its aliases stand for more than {MOST_VALUES:,} values, or for themselves")


def load_slice(path: Path, cls: type[Slice]) -> Slice:
    """Read a slice, or a whole workload (`Workload`), strictly.

    Raises:
        ArtifactError: the file is missing, is not YAML, or has an unknown or missing key or a value of another type.
    """
    text = read_text(path)
    try:
        record = from_plain(cls, parse_yaml(text))  # first, since it names the key that is wrong
        check_text_if_sealed(text)
    except ConfigError as error:
        problem = str(error).rstrip(".")
        raise ArtifactError(f"{path}: {problem}. Delete it and rerun the stage that makes it.") from error
    return record


def to_yaml(record: Any) -> str:
    """YAML text of a record, keys in the order of its fields."""
    text: str = yaml.dump(to_plain(record), Dumper=DUMPER, sort_keys=False, width=120, allow_unicode=True)
    return text


def narrowed(config: object, cls: type[Slice]) -> Slice:
    """Return the record of `cls` whose fields are those of `config` by the same names."""
    return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})  # type: ignore[arg-type]
