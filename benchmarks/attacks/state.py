"""What a run left in its results folder, in a form in which two runs of the same campaign are equal."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl

NUMBERS = re.compile(rb" *[0-9][0-9.eE+-]*")
"""Numbers of pages and summaries, with the spaces that align them: times of choosing candidates are among them."""
NOT_DECLARED = re.compile(r"logs/|measurements/|/\.snakemake_timestamp$|\.benchmark\.tsv$|\.log$|/lock$")
"""Files that are no artifacts of a stage, or, as measurements, kept beside them."""
TIMED = ("proposals", "search_time")
"""Tables with times that choosing candidates took."""


def state(results: Path) -> dict[str, Any]:
    """Return all artifacts below `results` by path, without what differs from run to run."""
    return {name: normal_form(results / name) for name in declared(results)}


def declared(results: Path) -> list[str]:
    """Return paths of all artifacts below `results`."""
    paths = (str(path.relative_to(results)) for path in results.rglob("*") if path.is_file())
    return sorted(path for path in paths if not NOT_DECLARED.search(path))


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return what is missing, of other content, or no longer readable; further files are none of our business."""
    missing = [f"{_short(path)} missing" for path in expected if path not in found]
    return missing + [f"{_short(p)} differs" for p in expected if p in found and not _same(expected[p], found[p])]


def normal_form(path: Path) -> Any:
    """Return the content of one artifact without what differs from run to run."""
    if path.suffix == ".parquet":
        return _table(path)
    content = path.read_bytes()
    if path.suffix == ".json":
        try:
            return _shape(json.loads(content), exact=path.parent.name == "plan")
        except ValueError:
            return "not JSON"
    if path.suffix in (".html", ".txt") or path.stem in TIMED:
        return NUMBERS.sub(b"#", content)
    return content


def _table(path: Path) -> Any:
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return "not Parquet"
    return (frame.height, frame.columns) if path.stem in TIMED else frame


def _shape(value: Any, *, exact: bool) -> Any:
    """Return a document without times and hashes; unless it is `exact`, without any value."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in ("created_at", "seal", "kareus_version")}
        return {key: _shape(item, exact=exact) for key, item in kept.items()}
    if isinstance(value, list):
        return [_shape(item, exact=exact) for item in value]
    return value if exact else None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, pl.DataFrame) and isinstance(other, pl.DataFrame):
        return one.equals(other)
    return type(one) is type(other) and bool(one == other)


def _short(path: str) -> str:
    """Return a path without the long name of a workload."""
    return re.sub(r"[^/]*_[0-9a-f]{8}(?=/)", "W", path)
