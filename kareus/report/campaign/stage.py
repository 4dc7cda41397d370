"""The stage `report-campaign`: a folder that holds everything about a campaign, to be looked at or handed on."""

import argparse
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from kareus.artifacts.files import replace_folder, write_text
from kareus.artifacts.layout import campaign_table
from kareus.artifacts.manifest import copy_listed, write_manifest
from kareus.artifacts.tables import TableSchema
from kareus.emulate.tables import FLEET
from kareus.errors import ArtifactError, printable_lines
from kareus.pipeline.tables import ITERATION
from kareus.profile.tables import TRIALS
from kareus.report.campaign.figures import campaign_figures
from kareus.report.campaign.inputs import CampaignInputs, load_campaign
from kareus.report.campaign.overview import headline, overview_rows
from kareus.report.campaign.report import campaign_text, sections
from kareus.report.campaign.tables import campaign_tables
from kareus.report.contents import CAMPAIGN_TABLES, report_contents
from kareus.report.downloads import OF_WORKLOAD, labelled, labelled_schema, write_downloads
from kareus.report.drawing import save
from kareus.report.page import page_html
from kareus.report.sections import Page, testbeds_label
from kareus.report.workload.tables import COMPARISON, FLEET_COMPARISON, PASSES, PROFILER


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus stage report-campaign`."""
    parser.add_argument("name", help="folder under RESULTS/campaigns/, such as quickstart or quickstart+seed=1")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Read the reports of all members, write that of the campaign, print its tables."""
    table = campaign_table(arguments.results, arguments.name)
    if not table.is_file():
        known = sorted(path.parent.name for path in arguments.results.glob("campaigns/*/campaign.parquet"))
        raise ArtifactError(
            f"{table}: no such file; planned campaigns: {', '.join(known) or 'none'}. Run snakemake --config "
            "campaign=NAME, which writes the report, too."
        )
    inputs = load_campaign(arguments.name, table, arguments.results)
    output = table.parent / "report"
    tables = campaign_tables(inputs)
    frames = dict(tables)
    overview = overview_rows(frames[COMPARISON])
    figures = campaign_figures(inputs, overview, frames[PASSES], frames[PROFILER])
    downloads = [*tables, *_collected(inputs)]
    for schema, frame in downloads:
        write_downloads(output / "data", frame, schema, inputs.provenance)
    label = testbeds_label(inputs.testbeds)
    for figure in figures:
        save(figure, f"campaign {inputs.name}, {label}", output)
    _copy_reports(inputs, arguments.results, output / "workloads")
    found = sections(inputs, overview, tables)
    text = campaign_text(inputs, found)
    page = Page(
        title=f"Campaign {inputs.name}",
        name=f"{len(inputs.members)} member{'s' * (len(inputs.members) != 1)}",
        testbeds=inputs.testbeds,
        provenance=inputs.provenance,
        sections=tuple(found),
        figures=tuple(figures),
        tables=downloads,
        summary=text,
        template="headline.html",
        extra={"headline": headline(overview, frames[FLEET_COMPARISON])},
    )
    write_text(output / "index.html", page_html(page))
    write_text(output / "summary.txt", text)
    names = [figure.file.removeprefix("figures/") for figure in figures]
    contents = report_contents(("index.html", "summary.txt", "workloads"), names, CAMPAIGN_TABLES)
    write_manifest(output / "manifest.json", [output / file for file in contents])
    print(printable_lines(text), end="")  # noqa: T201, the answer of the command


def _collected(inputs: CampaignInputs) -> list[tuple[TableSchema, pl.DataFrame]]:
    """Tables of all members, each joined to one."""
    trials = [
        labelled(rows, {"workload": workload, "sweep": sweep}) for (workload, sweep), rows in inputs.trials.items()
    ]
    return [
        _joined(labelled_schema(ITERATION, OF_WORKLOAD), inputs.iteration.values()),
        _joined(labelled_schema(FLEET, OF_WORKLOAD), inputs.fleet.values()),
        _joined(labelled_schema(TRIALS, ("workload", "sweep", "testbed")), trials),
    ]


def _joined(schema: TableSchema, frames: Iterable[pl.DataFrame]) -> tuple[TableSchema, pl.DataFrame]:
    return schema, pl.concat([schema.frame([]), *frames])


def _copy_reports(inputs: CampaignInputs, results: Path, folder: Path) -> None:
    """Copy the pages that the index links to into its folder, with all that they link to and nothing else."""
    manifests = {
        results / member["workload"] / "report" / manifest: member["workload"]
        for kind, manifest in (("workload", "manifest.json"), ("fleet", "fleets.manifest.json"))
        for member in inputs.of_kind(kind)
    }

    def copy(temporary: Path) -> None:  # an empty folder for a campaign of sweeps alone, which has no pages
        for manifest, workload in manifests.items():
            copy_listed(manifest, temporary / workload)

    replace_folder(folder, copy)
