"""Command `emulate`: what fleets of a workload's pipeline take, from its microbatch frontiers."""

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance, check_config, check_subject, derived
from kareus.artifacts.records import content_hash, to_plain
from kareus.artifacts.tables import TableSchema, read_provenance, read_table, write_table
from kareus.emulate.resolve import Fleet, resolve_fleets
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ArtifactError
from kareus.frontiers.config import frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.compare import THROUGHPUT_BASELINE
from kareus.plans.answer import AS_FAST_WORDS, fastest_answer
from kareus.plans.grid_files import read_series
from kareus.plans.selectors import fastest_plan
from kareus.plans.units import scaled
from kareus.workload.arguments import add_overrides

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the overrides and the folders."""
    text = (
        "options of config/emulation/, and Hydra overrides and sweeps, such as 1280gpus,2560gpus "
        "emulation.stragglers=[1.1] microbatch_size=2,4"
    )
    add_overrides(parser, text)
    parser.add_argument("--results", type=Path, default=Path("results"), help="results folder (default: results)")


def run(arguments: argparse.Namespace) -> None:
    """Emulate every fleet and write its tables."""
    for fleet in resolve_fleets(arguments.overrides, arguments.config_dir):
        _emulate(fleet, WorkloadFolder(arguments.results / fleet.workload_name))


def _emulate(fleet: Fleet, folder: WorkloadFolder) -> None:
    from kareus.emulate import rows as rows_of  # noqa: PLC0415 - the solver, for which bad overrides need not wait
    from kareus.emulate.frontiers import method_frontiers  # noqa: PLC0415 - likewise

    if not (folder.path / "frontier/microbatch.parquet").is_file():
        raise ArtifactError(
            f"{folder.path}: has no microbatch frontiers, which fleets are planned from; run snakemake --config "
            f"campaign=emulation 'overrides={json.dumps(list(fleet.overrides))}', which also emulates this fleet."
        )
    series = read_series(Path(fleet.emulation.series)) if fleet.emulation.series else None
    if series is not None:
        logger.info("%s", series.understood)
    provenance = _provenance(fleet, folder.microbatch)
    frontiers = method_frontiers(fleet, read_table(folder.microbatch, MICROBATCH))
    rows: tuple[tuple[TableSchema, list[dict[str, Any]]], ...] = (
        (FLEET, rows_of.fleet_rows(fleet, frontiers)),
        (STRAGGLERS, rows_of.straggler_rows(fleet, frontiers)),
        (POWER_CAPS, rows_of.power_cap_rows(fleet, frontiers)),
        (HOURS, rows_of.hour_rows(fleet, frontiers, series) if series else []),
    )
    for schema, of_table in rows:
        write_table(folder.fleet(fleet.name) / f"{schema.name}.parquet", schema.frame(of_table), schema, provenance)
    label = provenance.testbed.label if provenance.testbed else "no testbed"
    logger.info("%s: %s GPUs, %d pipelines [%s]", folder.fleet(fleet.name), f"{fleet.gpus:,}", fleet.pipelines, label)
    for line in _lines(FLEET.frame(rows[0][1])):
        logger.info("%s", line)


def _provenance(fleet: Fleet, microbatch: Path) -> Provenance:
    """Return the provenance of the fleet's tables, after checking that the frontiers are the workload's."""
    origins = {str(microbatch): read_provenance(microbatch, MICROBATCH)}
    check_subject(subject_of(fleet.workload), origins)
    check_config(frontier_hash(fleet.workload), str(microbatch), origins[str(microbatch)])
    return derived(content_hash([to_plain(fleet.workload), to_plain(fleet.emulation)]), origins)


def _lines(frontier: pl.DataFrame) -> list[str]:
    """Return lines: what `fastest` means, and of each method what that plan takes and saves, and its largest gap."""
    lines = [f"  fastest: {AS_FAST_WORDS}"]
    for (method,), plans in frontier.group_by("method", maintain_order=True):
        fastest = fastest_plan(plans)
        time, energy, power = (
            scaled(fastest[column], unit, digits=4)
            for column, unit in (("time_s", "s"), ("energy_j", "J"), ("power_w", "W"))
        )
        saved = "" if method == THROUGHPUT_BASELINE else f"; {fastest_answer(frontier, str(method)).saved}"
        lines.append(
            f"  {method}: fastest {time} with {energy} and {power}{saved}; largest gap {100 * max(plans['gap']):z.2f} %"
        )
    return lines
