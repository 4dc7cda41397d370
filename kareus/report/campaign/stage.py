"""The stage `report-campaign`: a folder that holds everything about a campaign, to be looked at or handed on."""

import argparse
from pathlib import Path

from kareus.artifacts.layout import campaign_table
from kareus.artifacts.manifest import copy_listed
from kareus.errors import ArtifactError, printable_lines
from kareus.report.campaign.inputs import CampaignInputs, load_campaign
from kareus.report.campaign.page import campaign_page
from kareus.report.page import write_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `kareus stage report-campaign`."""
    parser.add_argument("name", help="folder under RESULTS/campaigns/, such as quickstart or quickstart+seed=1")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Read the reports of all members, write that of the campaign, print its tables."""
    table = campaign_table(arguments.results, arguments.name)
    if not table.is_file():
        planned = sorted(path.parent.name for path in arguments.results.glob("campaigns/*/campaign.parquet"))
        raise ArtifactError(
            f"{table}: no such file; planned campaigns: {', '.join(planned) or 'none'}. Run snakemake --config "
            "campaign=NAME, which writes the report, too."
        )
    inputs = load_campaign(arguments.name, table, arguments.results)
    page, output = campaign_page(inputs), table.parent / "report"
    write_page(
        output,
        page,
        "index.html",
        beside=lambda folder: _copy_reports(inputs, arguments.results, folder / "workloads"),
    )
    print(printable_lines(page.summary), end="")  # noqa: T201, the answer of the command


def _copy_reports(inputs: CampaignInputs, results: Path, folder: Path) -> None:
    """Copy the pages that the index links to into its folder, with all that they link to and nothing else."""
    manifests = {
        results / member["workload"] / "report" / manifest: member["workload"]
        for kind, manifest in (("workload", "manifest.json"), ("fleet", "fleets.manifest.json"))
        for member in inputs.of_kind(kind)
    }
    folder.mkdir()  # empty for a campaign of sweeps alone, which has no pages
    for manifest, workload in manifests.items():
        copy_listed(manifest, folder / workload)
