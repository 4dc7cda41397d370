"""Durations of jobs of earlier runs, by rule: a small file from which the time left of the next run is estimated.

It is for the eye. Nothing is computed from it, and a file that is missing, damaged or cannot be written does no harm.
"""

import contextlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kareus.artifacts.files import read_json
from kareus.errors import ArtifactError

HISTORY = Path(".snakemake/kareus/durations.json")
"""Place of the file, below the folder in which the workflow runs."""
KEPT = 20
"""Durations of a rule that are kept, the newest; rules run once for each workload or partition."""

ELSEWHERE_S = {
    "answer_question": 4.0,
    "emulate_fleet": 15.6,
    "extract_partitions": 1.3,
    "profile_instructions": 0.5,
    "report_campaign": 3.3,
    "report_fleets": 3.3,
    "resolve_campaign": 2.0,
    "run_end_to_end": 0.3,
    "search_partition": 0.7,
    "select_plan": 0.3,
    "solve_pipeline": 1.2,
    "sweep_profiler": 1.0,
    "write_report": 3.3,
}
"""Seconds of a core for a job by rule, simulated testbed: means of the paper's campaign (benchmarks/README.md).

Rules that are not here take no time to speak of. They count until a folder has durations of its own.
"""


def read_history(path: Path) -> dict[str, list[float]]:
    """Read durations in seconds by rule, oldest first; none if there is no file, or none that can be used."""
    try:
        history = read_json(path)
    except ArtifactError:
        return {}
    if not isinstance(history, dict):
        return {}
    return {rule: values for rule, values in history.items() if _are_durations(values)}


def _are_durations(values: Any) -> bool:
    """Whether `values` is a list of durations, and not empty."""
    is_list = isinstance(values, list) and bool(values)
    return is_list and all(isinstance(value, float) and value >= 0 for value in values)


def add_to_history(path: Path, durations_s: Mapping[str, Sequence[float]]) -> None:
    """Add durations of a run to the file."""
    history = read_history(path)
    for rule, values in durations_s.items():
        history[rule] = [*history.get(rule, []), *(round(value, 3) for value in values)][-KEPT:]
    temporary = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(history) + "\n", encoding="utf-8")
        temporary.replace(path)


def usual_s(history: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median duration of each rule."""
    return {rule: statistics.median(values) for rule, values in history.items()}
