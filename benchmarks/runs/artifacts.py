"""What a run made, without what is never the same: when, the seals over that, and how long choosing took."""

import json
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.seals import KEY as SEAL

TIMES_OF_THIS_MACHINE = ("proposals.parquet", "search_time.parquet")
"""How long choosing candidates took, and what a report says of it."""


def artifacts(results: Path) -> dict[str, Any]:
    """Data of all tables and plans below `results`, by path; measurements that are kept are among them."""
    tables = {path: pl.read_parquet(path) for path in results.rglob("*.parquet")}
    plans = {path: _plan(path) for path in results.glob("*/plan/*.json")}
    files: dict[Path, Any] = tables | plans
    return {str(p.relative_to(results)): data for p, data in files.items() if p.name not in TIMES_OF_THIS_MACHINE}


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Paths that only one of two runs has, or whose data differ."""
    return sorted(
        {*(first.keys() ^ second.keys()), *(p for p in first.keys() & second.keys() if not _same(first[p], second[p]))}
    )


def _same(first: Any, second: Any) -> bool:
    return bool(first.equals(second) if isinstance(first, pl.DataFrame) else first == second)


def _plan(path: Path) -> Any:
    return _without_times(json.loads(path.read_text()))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in ("created_at", SEAL)}
    return [_without_times(item) for item in value] if isinstance(value, list) else value
