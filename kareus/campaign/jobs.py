"""The jobs of a campaign: every rule of the workflow that it needs, with the wildcards of each of its jobs.

Snakemake starts from what is asked for and does not look for what is missing on the way there as long as the end is in
place. The workflow asks for the outputs of all of these jobs, so that nothing can be missing unnoticed.
"""

from collections.abc import Iterable, Sequence

from kareus.campaign.resolve import ResolvedCampaign
from kareus.partition.names import expected_partitions
from kareus.workload.naming import graph_name

MEASURED_WITH = ("schedule", "profile", "search", "frontier")
"""Slices of the configuration that everything with a microbatch frontier has."""
PLANNED_WITH = ("pipeline", "plan")
"""Slices that workloads have besides."""

Wildcards = dict[str, str]


def campaign_jobs(
    campaign: ResolvedCampaign, selectors: Sequence[str], played: Iterable[str]
) -> dict[str, list[Wildcards]]:
    """Return the wildcards of all jobs of a campaign, by rule.

    Args:
        campaign: the campaign.
        selectors: plans that are selected for each of its workloads.
        played: names of its workloads that are run end to end.
    """
    planned, emulated = list(campaign.workloads), list(dict.fromkeys(name for name, _ in campaign.fleets))
    measured = list(dict.fromkeys([*planned, *emulated]))
    graphs = list(dict.fromkeys(graph_name(workload) for workload in campaign.folders.values()))
    configured = [(name, stage) for name in measured for stage in MEASURED_WITH]
    configured += [(name, stage) for name in planned for stage in PLANNED_WITH]
    searched = [(name, each) for name in measured for each in expected_partitions(campaign.folders[name])]
    return {
        "resolve_campaign": [{}],
        "write_config": _each(("workload", "stage"), configured),
        "write_graph_config": _of("graph", graphs),
        "extract_partitions": _of("graph", graphs),
        "place_partitions": _of("workload", campaign.folders),
        "enumerate_schedules": _of("workload", measured),
        "profile_instructions": _of("workload", measured),
        "sweep_profiler": _each(("workload", "sweep"), campaign.sweeps),
        "search_partition": _each(("workload", "partition"), searched),
        "compose_frontiers": _of("workload", measured),
        "solve_pipeline": _of("workload", planned),
        "select_plan": _each(("workload", "selector"), [(name, each) for name in planned for each in selectors]),
        "run_end_to_end": _of("workload", played),
        "emulate_fleet": _each(("workload", "fleet"), campaign.fleets),
        "write_report": _of("workload", planned),
        "report_fleets": _of("workload", emulated),
        "report_campaign": [{}] if campaign.folders else [],
        "answer_question": [{}] if campaign.asked else [],
    }


def _of(wildcard: str, values: Iterable[str]) -> list[Wildcards]:
    return [{wildcard: value} for value in values]


def _each(wildcards: tuple[str, str], values: Iterable[tuple[str, str]]) -> list[Wildcards]:
    return [dict(zip(wildcards, pair, strict=True)) for pair in values]
