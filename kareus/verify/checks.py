"""Checks of single files that Kareus wrote: is each as it was written?"""

import re
from collections.abc import Callable
from pathlib import Path

from kareus.artifacts.files import file_hash, read_bytes, read_json, read_text
from kareus.artifacts.manifest import SUFFIX, read_manifest
from kareus.artifacts.records import parse_json
from kareus.artifacts.seals import KEY, SEAL_LENGTH, check_text_if_sealed, unsealed
from kareus.artifacts.store import JOURNAL, damaged_lines, shown_lines
from kareus.artifacts.tables import check_bytes, is_written_by_kareus
from kareus.errors import ArtifactError, ConfigError
from kareus.training.checkpoint_files import HEADER, damage, is_checkpoint_file
from kareus.verify.outputs import is_in_results, is_list_of_outputs, read_outputs

Check = Callable[[Path], object]
"""Raises an `ArtifactError` or a `ConfigError` if the file is not as it was written."""

SEALED_SINCE = 3
"""Version of the plan file with which seals came."""
_MARK = re.compile(rf'"{KEY}":\s*"[^"]{{{SEAL_LENGTH}}}"|"kareus_version"'.encode())
"""Bytes at the end or the beginning of JSON files that Kareus wrote."""


def problem_of(path: Path) -> str | None:
    """Return what is wrong with a file that Kareus wrote; None if it is sound, or is not known to be ours."""
    check = _check_of(path)
    if check is None:
        return None
    try:
        check(path)
    except (ArtifactError, ConfigError) as error:
        if path.suffix in (".json", ".parquet") and not is_checkpoint_file(path) and not _is_ours(path):
            return None
        return str(error).removeprefix(f"{path}: ").partition(";")[0].rstrip(".")
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def is_checked(path: Path) -> bool:
    """Return whether a file is one that Kareus wrote and that can be compared with what it wrote."""
    return _check_of(path) is not None and (is_checkpoint_file(path) or _is_ours(path))


def _check_of(path: Path) -> Check | None:
    """Return the check of a file; None if there is no hash to compare with."""
    is_configuration = path.suffix == ".yaml" and (path.parent.name == "config" or path.name == "config.yaml")
    is_plan = path.suffix == ".json" and (path.parent.name == "plan" or path.name == "plan.json")
    checks: tuple[tuple[bool, Check], ...] = (
        (path.suffix == ".parquet", check_bytes),
        (path.name.endswith(SUFFIX), read_manifest),
        (path.name == JOURNAL, _check_journal),
        (is_list_of_outputs(path), read_outputs),
        (is_configuration, _check_configuration),
        (is_checkpoint_file(path), _check_checkpoint),
        (is_plan, _check_plan),
        (path.suffix == ".json", _check_any_json),
    )
    return next((check for applies, check in checks if applies), None)


def _is_ours(path: Path) -> bool:
    """Whether a file with something wrong may be taken for one of Kareus; others use the same names."""
    return _has_mark(path) or is_in_results(path)


def _has_mark(path: Path) -> bool:
    if path.suffix == ".parquet":
        return is_written_by_kareus(path) is True
    try:
        return _MARK.search(read_bytes(path)) is not None
    except OSError:
        return False


def _check_journal(path: Path) -> None:
    lines = damaged_lines(path) if (path.parent / "lock").exists() or is_in_results(path) else []  # or not a shelf
    if lines:
        raise ArtifactError(f"{len(lines)} lines ({shown_lines(lines)})" if len(lines) > 1 else shown_lines(lines))


def _check_configuration(path: Path) -> None:
    """Check a configuration that has a seal; one without is a user's, or of an earlier version."""
    check_text_if_sealed(read_text(path))


def _check_plan(path: Path) -> None:
    """Check a plan; what has neither seal nor version, such as an export or notes, is none."""
    document = read_json(path)
    if not isinstance(document, dict):
        return
    version = document.get("schema_version")
    if KEY in document or (isinstance(version, int) and version >= SEALED_SINCE):
        unsealed(document)


def _check_checkpoint(path: Path) -> None:
    header = path.with_suffix(HEADER)
    if path != header and damage(header):
        return  # a finding of its own
    problem = damage(path)
    if problem:
        raise ArtifactError(problem)


def _check_any_json(path: Path) -> None:
    """Check a sealed document in any folder, with the file that it describes if it names its hash.

    Other JSON is not ours, or has no seal.
    """
    try:
        document = parse_json(read_text(path))
    except (ArtifactError, ConfigError):
        return
    seal = document.get(KEY) if isinstance(document, dict) else None
    if not isinstance(seal, str) or len(seal) != SEAL_LENGTH:
        return
    described, expected = path.with_name(path.name.removesuffix(".json")), unsealed(document).get("sha256")
    if isinstance(expected, str) and described.is_file() and file_hash(described) != expected:
        raise ArtifactError(f"{described.name} is not the file that was written with it")
