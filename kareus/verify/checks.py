"""Checks of single files that Kareus wrote: is each as it was written?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kareus.artifacts.files import file_hash, read_json, read_text
from kareus.artifacts.manifest import SUFFIX, read_manifest
from kareus.artifacts.seals import KEY, check_text, unsealed
from kareus.artifacts.store import damaged_lines
from kareus.artifacts.tables import check_bytes
from kareus.engine.checkpoint_files import HEADER, damage, is_checkpoint_file
from kareus.errors import ArtifactError, ConfigError

Check = Callable[[Path], object]
"""Raises an `ArtifactError` or a `ConfigError` if the file is not as it was written."""

JOURNAL = "journal.jsonl"
SEALED_SINCE = 3
"""Version of the plan file with which seals came."""


def problem_of(path: Path) -> str | None:
    """Return what is wrong with a file that Kareus wrote; None if it is sound, or is not known to be ours."""
    check = _check_of(path)
    if check is None:
        return None
    try:
        check(path)
    except (ArtifactError, ConfigError) as error:
        return str(error).removeprefix(f"{path}: ").partition(";")[0].rstrip(".")
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def _check_of(path: Path) -> Check | None:
    """How a file is checked; None if nothing tells whether it is as it was written."""
    is_configuration = path.suffix == ".yaml" and (path.parent.name == "config" or path.name == "config.yaml")
    is_plan = path.suffix == ".json" and (path.parent.name == "plan" or path.name == "plan.json")
    checks: tuple[tuple[bool, Check], ...] = (
        (path.suffix == ".parquet", check_bytes),
        (path.name.endswith(SUFFIX), read_manifest),
        (path.name == JOURNAL, _check_journal),
        (is_configuration, _check_configuration),
        (is_checkpoint_file(path), _check_checkpoint),
        (is_plan, _check_plan),
        (path.suffix == ".json", _check_any_json),
    )
    return next((check for applies, check in checks if applies), None)


def _check_journal(path: Path) -> None:
    lines = damaged_lines(path)
    if lines:
        raise ArtifactError(f"damaged lines: {', '.join(map(str, lines))}")


def _check_configuration(path: Path) -> None:
    check_text(read_text(path))


def _check_plan(path: Path) -> None:
    document = read_json(path)
    if not isinstance(document, dict):
        raise ArtifactError("not a plan")
    version = document.get("schema_version")
    if KEY in document or not isinstance(version, int) or version >= SEALED_SINCE:
        unsealed(document)


def _check_checkpoint(path: Path) -> None:
    header = path.with_suffix(HEADER)
    if path != header and damage(header):
        return  # a finding of its own
    problem = damage(path)
    if problem:
        raise ArtifactError(problem)


def _check_any_json(path: Path) -> None:
    """Check a sealed document wherever it stands, with the file that it describes if it names its hash.

    Other JSON is not ours, or has no seal.
    """
    try:
        document: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict) or KEY not in document:
        return
    described, expected = path.with_name(path.name.removesuffix(".json")), unsealed(document).get("sha256")
    if expected is not None and described.is_file() and file_hash(described) != expected:
        raise ArtifactError(f"{described.name} is not the file that was written with it")
