"""Resolved configurations in YAML, whole or the slice that one stage reads."""

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kareus.artifacts.files import read_text
from kareus.artifacts.records import from_plain, to_plain
from kareus.artifacts.seals import check_text_if_sealed
from kareus.errors import ArtifactError, ConfigError

Slice = TypeVar("Slice")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of libyaml where PyYAML has it: ten times as fast, for jobs that do little else."""


def load_slice(path: Path, cls: type[Slice]) -> Slice:
    """Read a slice, or a whole workload (`Workload`), strictly.

    Raises:
        ArtifactError: the file is missing, is not YAML, or has an unknown or missing key or a value of another type.
    """
    text = read_text(path)
    try:
        record = from_plain(cls, yaml.load(text, Loader=LOADER))  # first, since it names the key that is wrong
        check_text_if_sealed(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ArtifactError(f"{path}: not valid YAML{where}; delete it and rerun the stage that makes it.") from error
    except ConfigError as error:
        problem = str(error).rstrip(".")
        raise ArtifactError(f"{path}: {problem}. Delete it and rerun the stage that makes it.") from error
    return record


def to_yaml(record: Any) -> str:
    """YAML text of a record, keys in the order of its fields."""
    text: str = yaml.safe_dump(to_plain(record), sort_keys=False, width=120, allow_unicode=True)
    return text


def narrowed(config: object, cls: type[Slice]) -> Slice:
    """Return the record of `cls` whose fields are those of `config` by the same names."""
    return cls(**{field.name: getattr(config, field.name) for field in fields(cls)})  # type: ignore[arg-type]
