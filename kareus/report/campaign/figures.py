"""The figures of a campaign: all workloads in one scatter, their frontiers, who found them, the profiler's sweeps."""

from collections.abc import Mapping

import polars as pl

from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.campaign.overview import Overview, fleet_labels, short_labels
from kareus.report.campaign.profiler import profiler_figure
from kareus.report.campaign.scatter import overview_figure
from kareus.report.charts import Figure
from kareus.report.contents import frontiers_name
from kareus.report.fleet.inputs import fleet_title
from kareus.report.frontier_panels import frontier_panels
from kareus.report.workload.searches import NOTHING, pass_looks, pass_name, shares_figure
from kareus.report.workload.tables import PASSES

COMPARED = ("sequential", "sequential+perseus", "nanobatching+perseus", "kareus")
"""Methods whose frontiers the paper shows, and the plain baseline."""


def campaign_figures(
    inputs: CampaignInputs, overview: list[Overview], passes: pl.DataFrame, profiler: pl.DataFrame
) -> list[Figure]:
    """Every figure of a campaign; `passes` and `profiler` are its tables `PASSES` and `PROFILER`."""
    parts: dict[str, list[str]] = {}
    for member in inputs.of_kind("workload"):
        parts.setdefault(member["part"], []).append(member["workload"])
    labels = short_labels(list(inputs.of_kind("workload")))
    return [
        *([overview_figure(overview)] if overview else []),
        *(_frontiers(inputs, part, names, labels) for part, names in parts.items()),
        *([_fleets(inputs)] if inputs.fleet else []),
        *([_passes(passes, labels)] if parts else []),
        *([profiler_figure(inputs, profiler)] if inputs.trials else []),
    ]


def _frontiers(inputs: CampaignInputs, part: str, workloads: list[str], labels: Mapping[str, str]) -> Figure:
    own = {labels[name]: inputs.iteration[name].filter(pl.col("method").is_in(COMPARED)) for name in workloads}
    return frontier_panels(frontiers_name(part), f"Iteration frontiers, {part}", "iteration", own)


def _fleets(inputs: CampaignInputs) -> Figure:
    members = list(inputs.of_kind("fleet"))
    titles = fleet_labels(members, lambda row: fleet_title(inputs.fleet[row["workload"], row["name"]]))
    own = {
        titles[key]: rows.filter(pl.col("method").is_in(COMPARED) & pl.col("on_frontier"))
        for key, rows in inputs.fleet.items()
    }
    return frontier_panels("fleets", "Iteration frontiers of emulated fleets", "fleet", own)


def _passes(passes: pl.DataFrame, labels: Mapping[str, str]) -> Figure:
    """One bar for each workload, and the first for all of them."""
    passes = passes.with_columns(pl.col("workload").replace(labels))
    together = passes.with_columns(workload=pl.lit("all workloads"))
    named = pl.concat([together, passes]) if len(passes) else passes
    counts = named.group_by("workload", "chosen_by", maintain_order=True).agg(pl.sum("measured"), pl.sum("on_frontier"))
    totals = pl.col("on_frontier").sum().over("workload")
    rows = counts.select(
        pl.format("{} ({} choices)", "workload", totals).alias("what"),
        pl.col("chosen_by").map_elements(pass_name, pl.String).alias("found_by"),
        "measured",
        "on_frontier",
    )
    return shares_figure(
        rows,
        pass_looks(passes["chosen_by"].to_list()),
        title="Who found the frontiers",
        table=PASSES.name,
        empty="" if len(passes) else NOTHING,
    )
