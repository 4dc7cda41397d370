"""Names of a report's files, for the rules that declare them; a test compares them with what is written."""

from collections.abc import Iterable

WRITTEN_AS = ("csv", "parquet")
"""Kinds of files that every table is written as."""
DRAWN_AS = ("svg", "pdf", "png")
"""Kinds of files that every figure is drawn as."""
PLOTS = ("iteration", "search", "passes", "microbatch")
"""Figures of every workload, except timelines."""
TABLES = ("savings", "iteration", "microbatch", "iterations", "timeline", "power", "candidates", "rounds", "proposals")
FLEET_TABLES = ("fleet", "stragglers", "power_caps", "hours")
BASELINE_PLAN = "baseline"
"""Name of the plan that others are compared with: that of `sequential`."""


CAMPAIGN_TABLES = (
    "comparison",
    "fleet_comparison",
    "passes",
    "search_time",
    "profiler",
    "iteration",
    "fleet",
    "trials",
)

ADVICE_TABLES = ("advised_layouts", "advised_plans")
SUMMARY = "summary.txt"

OVERVIEW = "overview"
"""Figure of all workloads of a campaign."""


def frontiers_name(part: str) -> str:
    """Figure of the frontiers of a campaign's part."""
    return f"frontiers_{part}"


def campaign_figure_names(members: Iterable[tuple[str, str]]) -> list[str]:
    """Figures of a campaign, by the part and the kind of everything in it that was not refused."""
    members = list(members)
    parts = dict.fromkeys(part for part, kind in members if kind == "workload")
    kinds = {kind for _, kind in members}
    return [
        *([OVERVIEW] if "workload" in kinds else []),
        *(frontiers_name(part) for part in parts),
        *(["fleets"] if "fleet" in kinds else []),
        *(["passes"] if "workload" in kinds else []),
        *(["profiler"] if "sweep" in kinds else []),
    ]
