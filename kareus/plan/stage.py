"""Command `select`: pick a point of the iteration frontier and write its plan."""

import argparse
import logging
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.files import write_json
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import TestbedIdentity, check_config, check_subject, derived
from kareus.artifacts.records import content_hash, suggest, to_plain
from kareus.artifacts.tables import read_provenance, read_table
from kareus.errors import ArtifactError, ConfigError
from kareus.frontier.tables import MICROBATCH
from kareus.pipeline.tables import ITERATION
from kareus.plan.build import build_plan
from kareus.plan.run_totals import check_tokens, run_totals
from kareus.plan.selectors import ALLOWED, Goal, Selector, parse_selector, select
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice, cut, frontier_hash, load_slice, subject_of

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the request and the workload's folder."""
    parser.add_argument("selector", help=ALLOWED.removeprefix("allowed: "))
    parser.add_argument("folder", type=Path, help="results folder of the workload")
    parser.add_argument("--method", default="kareus", help="whose frontier to select from (default: kareus)")
    parser.add_argument("--tokens", type=float, help="also print what training on so many tokens takes")
    parser.add_argument(
        "--output", type=Path, help="plan file to write (default: FOLDER/plan/SELECTOR.json, or SELECTOR_METHOD.json)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Select, assemble and write the plan."""
    selector = parse_selector(arguments.selector)
    if arguments.tokens is not None:
        check_tokens(arguments.tokens)
    folder = WorkloadFolder(arguments.folder)
    workload = load_slice(folder.config("plan"), PlanSlice).workload
    iteration = read_table(folder.iteration, ITERATION)
    testbed = _testbed(folder, workload)
    methods = iteration["method"].unique().to_list()
    if arguments.method not in methods:
        raise ConfigError(f"--method {arguments.method}: not planned; {suggest(arguments.method, methods)}.")
    plans = iteration.filter(pl.col("method") == arguments.method)
    microbatch = read_table(folder.microbatch, MICROBATCH)
    row = _chosen(selector, plans, microbatch, workload)
    plan = build_plan(workload, folder.name, arguments.selector, row, microbatch, testbed)
    output = arguments.output or folder.plan(arguments.selector, arguments.method)
    write_json(output, to_plain(plan))
    logger.info(
        "%s: %s of %s: %.4f s, %.1f J (%.1f J dynamic), certified gap %.3f %% at %s [%s]",
        output,
        plan.selector,
        plan.method,
        plan.prediction.time_s,
        plan.prediction.energy_j,
        plan.prediction.dynamic_energy_j,
        100 * row["gap"],
        "the deadline" if selector.goal in (Goal.DEADLINE, Goal.STRAGGLER) else "its own time",
        plan.testbed.label,
    )
    if arguments.tokens is not None:
        logger.info(run_totals(plan.prediction, workload, arguments.tokens, selector.prices))


def _chosen(selector: Selector, plans: pl.DataFrame, microbatch: pl.DataFrame, workload: Workload) -> dict[str, Any]:
    """Row of `ITERATION` that `selector` asks for: precomputed, or solved for where it may lie between the plans."""
    row = plans.row(select(selector, plans, workload.parallelism.gpus), named=True)
    if selector.goal in (Goal.FASTEST, Goal.MIN_ENERGY):
        return row
    from kareus.plan.limits import exact_row  # noqa: PLC0415 - the solver, which only these need

    return exact_row(selector, plans, row, microbatch, cut(workload, "pipeline"))


def _testbed(folder: WorkloadFolder, workload: Workload) -> TestbedIdentity:
    """The testbed of both frontiers, once they are the workload's."""
    iteration, microbatch = str(folder.iteration), str(folder.microbatch)
    origins = {
        iteration: read_provenance(folder.iteration, ITERATION),
        microbatch: read_provenance(folder.microbatch, MICROBATCH),
    }
    check_subject(subject_of(workload), origins)
    check_config(content_hash(cut(workload, "pipeline")), iteration, origins[iteration])
    check_config(frontier_hash(workload), microbatch, origins[microbatch])
    origin = derived(content_hash(workload), origins)
    if origin.testbed is None:
        raise ArtifactError(f"{iteration}: does not say on which testbed it was measured; rerun.")
    if origin.seed != workload.seed:
        raise ArtifactError(f"{iteration}: measured with seed {origin.seed}, the workload has {workload.seed}; rerun.")
    return origin.testbed
