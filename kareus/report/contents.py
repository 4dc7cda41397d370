"""Files beside the page of a workload, for the rule that declares them; a test holds them to what is written."""

from collections.abc import Iterable

DRAWN_AS = ("svg", "pdf")
"""Kinds of files that every figure is drawn as."""
WRITTEN_AS = ("csv", "parquet")
"""Kinds of files that every table is written as."""
PLOTS = ("iteration", "power", "search", "passes", "microbatch")
"""Figures of every workload, beside the timelines."""
TABLES = ("iteration", "microbatch", "iterations", "timeline", "power", "candidates", "rounds", "proposals")
FLEET_TABLES = ("fleet", "stragglers", "power_caps", "hours")
BASELINE = "baseline"
"""Name of the plan that others are compared with: the fastest of `sequential`."""


def timeline_names(plans: Iterable[str]) -> list[str]:
    """Figures of the timelines of plans by name, and of the baseline's."""
    return [f"timeline_{name}" for name in (*plans, BASELINE)]
