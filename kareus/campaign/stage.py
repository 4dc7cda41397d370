"""Command `campaign`: expand a campaign, and write what belongs to it and what cannot run."""

import argparse
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kareus.artifacts.files import read_text
from kareus.artifacts.layout import campaign_table
from kareus.artifacts.outputs import add_force, check_folder, check_outputs, table
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.artifacts.shipped import config_folder
from kareus.artifacts.tables import write_table
from kareus.campaign.config import CAMPAIGN
from kareus.campaign.resolve import Member, ResolvedCampaign, resolve_campaign
from kareus.workload.arguments import add_overrides
from kareus.workload.naming import degrees
from kareus.workload.overrides import options
from kareus.workload.tables import WORKLOADS
from kareus.workload.writing import write_resolved

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the campaign, the overrides, the configuration and the output."""
    parser.add_argument("name", nargs="?", help="name of a file of config/campaign/ (default: all are listed)")
    text = "Hydra overrides of everything in it, in the place of its own of the same key, such as gpu=h200"
    add_overrides(parser, text)
    parser.add_argument("--output", type=Path, help="folder to write to (default: nothing is written)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resolve and print; write where there is a folder for it. Without a name, list all campaigns."""
    if arguments.name is None:
        for line in listed(arguments.config_dir or config_folder()):
            logger.info("%s", line)
        return
    if arguments.output is not None:
        check_folder(arguments.output, force=arguments.force)
    campaign = resolve_campaign(arguments.name, arguments.overrides, arguments.config_dir)
    for line in _lines(campaign):
        logger.info("%s", line)
    if arguments.output is not None:
        path = campaign_table(arguments.output, campaign.folder)
        check_outputs(arguments, [(arguments.output / "workloads.parquet", table(WORKLOADS)), (path, table(CAMPAIGN))])
        _write(campaign, arguments.output, path)


def listed(config_dir: Path) -> Iterator[str]:
    """Yield a line for each campaign: its name, and the first sentence of the comment that its file begins with."""
    names = options("campaign", config_dir)
    width = max(map(len, names), default=0)
    for name in names:
        comment = itertools.takewhile(
            lambda line: line.startswith("#"), read_text(config_dir / "campaign" / f"{name}.yaml").splitlines()
        )
        text = " ".join(line.lstrip("# ") for line in comment)
        yield f"{name:<{width}}  {text.split('. ')[0].rstrip('.')}"
    yield "`kareus campaign NAME` lists what is in one; `snakemake --config campaign=NAME -n` says how long it takes."


def _write(campaign: ResolvedCampaign, results: Path, path: Path) -> None:
    """Write the workloads that can run to `results`, and the table of all members to `path`."""
    write_resolved(campaign.resolved, results)
    provenance = Provenance(config_hash=content_hash([member.workload for member in campaign.members]))
    write_table(path, CAMPAIGN.frame([_row(member) for member in campaign.members]), CAMPAIGN, provenance)


def _lines(campaign: ResolvedCampaign) -> Iterator[str]:
    """One line for each member, under the heading of its part."""
    part = None
    for member in campaign.members:
        if member.part != part:
            part = member.part
            yield f"{part}:"
        name = f" {member.kind} {member.name}" if member.name else ""
        yield f"  {member.workload_name}{name}{f'  refused: {member.refusal}' if member.refusal else ''}"
    if campaign.asked is not None:
        if campaign.asked.part != part:
            yield f"{campaign.asked.part}:"
        yield f"  question {' '.join(campaign.asked.texts)}"


def _row(member: Member) -> dict[str, Any]:
    workload = member.pipeline
    return {
        "part": member.part,
        "kind": str(member.kind),
        "workload": member.workload_name,
        "name": member.name,
        "refusal": member.refusal,
        "overrides": list(member.resolution.overrides),
        "model": workload.model.name,
        "gpu": workload.gpu.name,
        "parallelism": degrees(workload),
        "microbatch_size": workload.microbatch_size,
        "sequence_length": workload.sequence_length,
        "num_microbatches": workload.num_microbatches,
        "gpus": member.gpus,
    }
