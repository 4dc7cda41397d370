"""The page of a campaign: sections with tables in the paper's form and figures, downloads, and its text."""

from collections.abc import Sequence

import polars as pl

from kareus.artifacts.tables import TableSchema
from kareus.emulate.tables import FLEET
from kareus.pipeline.tables import ITERATION
from kareus.profile.tables import TRIALS
from kareus.report.campaign.figures import campaign_figures
from kareus.report.campaign.inputs import CampaignInputs
from kareus.report.campaign.overview import Overview, headlines, overview_rows, overview_sheet, short_labels
from kareus.report.campaign.sheets import (
    ablation_sheet,
    fleet_sheets,
    improvement_sheet,
    index_sheet,
    profiler_sheet,
    runs_sheet,
    search_sheet,
    settling_sheet,
    throughput_sheet,
)
from kareus.report.campaign.tables import campaign_tables
from kareus.report.contents import OVERVIEW, frontiers_name
from kareus.report.downloads import OF_WORKLOAD, joined, labelled
from kareus.report.page import Page, Section, Tables, testbeds_label
from kareus.report.sheets import blocks_text, sheet_text
from kareus.report.workload.tables import COMPARISON, PASSES, PROFILER

MEMBERS = "Members"
"""Title of the section that lists what belongs to the campaign; the text leaves it out."""


def campaign_page(inputs: CampaignInputs) -> Page:
    """Return the page."""
    tables = campaign_tables(inputs)
    frames = dict(tables)
    overview = overview_rows(frames[COMPARISON])
    headline, *others = headlines(inputs.iteration.values(), inputs.fleet.values()) or [""]
    parts = sections(inputs, overview, tables)
    return Page(
        title=f"Campaign {inputs.name}",
        name=f"{len(inputs.members)} member{'s' * (len(inputs.members) != 1)}",
        subject=f"campaign {inputs.name}",
        testbeds=inputs.testbeds,
        provenance=inputs.provenance,
        sections=tuple(parts),
        figures=tuple(campaign_figures(inputs, overview, frames[PASSES], frames[PROFILER])),
        tables=[*tables, *_collected(inputs)],
        summary=campaign_text(inputs, parts),
        template="headline.html",
        extra={"headline": headline, "lead": (*others, *inputs.trust)},
    )


def _collected(inputs: CampaignInputs) -> list[tuple[TableSchema, pl.DataFrame]]:
    """Tables of all members, each joined to one."""
    trials = [
        labelled(rows, {"workload": workload, "sweep": sweep}) for (workload, sweep), rows in inputs.trials.items()
    ]
    return [
        joined(ITERATION, OF_WORKLOAD, inputs.iteration.values()),
        joined(FLEET, OF_WORKLOAD, inputs.fleet.values()),
        joined(TRIALS, ("workload", "sweep", "testbed"), trials),
    ]


def sections(inputs: CampaignInputs, overview: list[Overview], tables: Tables) -> list[Section]:
    """Every section, in order; `tables` are those of the campaign."""
    by_name = {schema.name: frame for schema, frame in tables}
    members = inputs.members.filter(pl.col("kind") == "workload")
    comparison, fleets, profiler = (by_name[name] for name in ("comparison", "fleet_comparison", "profiler"))
    parts = []
    if len(members):
        sheet = overview_sheet(overview, inputs.members)
        figures = (OVERVIEW,) if overview else ()
        parts.append(Section(title="All workloads", sheets=(sheet,), figures=figures))
    for (part,), part_members in members.group_by("part", maintain_order=True):
        parts.append(_part(str(part), part_members, comparison.filter(pl.col("part") == part)))
    if len(comparison):
        parts += _of_workloads(inputs, members, comparison, by_name)
    if len(fleets):
        text = "Fleets of equal pipelines, put together from the microbatch frontiers of one (paper, section 6.3)."
        parts.append(Section(title="Emulation", text=text, sheets=tuple(fleet_sheets(fleets)), figures=("fleets",)))
    if len(profiler):
        text = "One partition measured over and over under several windows and cooldowns (paper, section 6.7)."
        settling = profiler.filter(pl.col("warm_reference_energy_j").is_not_null())
        sheets = (profiler_sheet(profiler), *([settling_sheet(settling)] if len(settling) else []))
        parts.append(Section(title="Profiler", text=text, sheets=sheets, figures=("profiler",)))
    return [*parts, Section(title=MEMBERS, sheets=(index_sheet(inputs.members),), is_folded=True)]


def _part(part: str, members: pl.DataFrame, comparison: pl.DataFrame) -> Section:
    return Section(
        title=part[0].upper() + part[1:],
        text="Plans of the least time, and what frontiers give within the time and within the energy of a baseline.",
        sheets=(
            throughput_sheet(members, comparison),
            improvement_sheet(members, comparison),
            ablation_sheet(members, comparison),
        ),
        figures=(frontiers_name(part),) if len(comparison) else (),
    )


def _of_workloads(
    inputs: CampaignInputs, members: pl.DataFrame, comparison: pl.DataFrame, tables: dict[str, pl.DataFrame]
) -> list[Section]:
    """Return the sections on runs and on searches, in which workloads of several parts stand once."""
    planned = members.filter(pl.col("refusal").is_null())
    parts = []
    if any(inputs.runs.values()):
        text = (
            "Played back on the simulated testbed: whole instructions, with noise, on chips that stay warm."
            if {testbed.kind for testbed in inputs.testbeds} == {"simulated"}
            else "Run by the engine, or played back where the testbed is simulated."
        )
        parts.append(Section(title="Predicted and run", text=text, sheets=(runs_sheet(planned, comparison),)))
    if len(tables["passes"]):
        labels = short_labels(list(inputs.of_kind("workload")))
        sheet = search_sheet(tables["passes"], tables["search_time"], labels)
        parts.append(Section(title="Searches", sheets=(sheet,), figures=("passes",)))
    return parts


def campaign_text(inputs: CampaignInputs, parts: Sequence[Section]) -> str:
    """The report for a terminal: plain text, aligned, ending in a line feed."""
    blocks = [
        [f"campaign {inputs.name}", testbeds_label(inputs.testbeds)],
        *(block for section in parts if section.title != MEMBERS for block in _section_text(section)),
        *([_refused(inputs)] if inputs.members["refusal"].is_not_null().any() else []),
    ]
    return blocks_text(blocks)


def _section_text(section: Section) -> list[list[str]]:
    rule = "=" * len(section.title)
    return [[section.title, rule], *(block for sheet in section.sheets for block in sheet_text(sheet))]


def _refused(inputs: CampaignInputs) -> list[str]:
    refused = inputs.members.filter(pl.col("refusal").is_not_null()).unique("workload", maintain_order=True)
    return ["Refused", *(f"{row['workload']}: {row['refusal']}" for row in refused.iter_rows(named=True))]
