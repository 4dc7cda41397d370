"""Command `pipeline`: solve the iteration frontiers of all methods."""

import argparse
import logging
from pathlib import Path

import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import check_config, check_subject, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.frontier.config import frontier_hash
from kareus.frontier.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.frontiers import iteration_rows
from kareus.pipeline.instructions import instruction_rows, instructions_of
from kareus.pipeline.tables import INSTRUCTIONS, ITERATION

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs and the outputs."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--microbatch", type=Path, required=True, help="microbatch frontiers (Parquet)")
    parser.add_argument("--instructions", type=Path, required=True, help="instructions to write (Parquet)")
    parser.add_argument("--iteration", type=Path, required=True, help="iteration frontiers to write (Parquet)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Solve and write."""
    check_files(arguments, [(arguments.instructions, table(INSTRUCTIONS)), (arguments.iteration, table(ITERATION))])
    config = load_slice(arguments.config, PipelineSlice)
    origin = read_provenance(arguments.microbatch, MICROBATCH)
    check_subject(subject_of(config), {str(arguments.microbatch): origin})
    check_config(frontier_hash(config), str(arguments.microbatch), origin)
    provenance = derived(content_hash(config), {str(arguments.microbatch): origin})
    iteration = ITERATION.frame(iteration_rows(config, read_table(arguments.microbatch, MICROBATCH)))
    instructions = INSTRUCTIONS.frame(instruction_rows(instructions_of(config)))
    write_table(arguments.instructions, instructions, INSTRUCTIONS, provenance)
    write_table(arguments.iteration, iteration, ITERATION, provenance)
    if config.parallelism.dp > 1:
        logger.info("gradient synchronisation over dp=%d replicas is not part of the iteration", config.parallelism.dp)
    for (method,), plans in iteration.group_by("method", maintain_order=True):
        logger.info(_summary(str(method), plans))


def _summary(method: str, plans: pl.DataFrame) -> str:
    fastest, gaps = plans.row(0, named=True), plans["gap"].to_list()
    return (
        f"{method}: {len(plans)} plan{'s' * (len(plans) > 1)}, fastest {fastest['time_s']:.4f} s with "
        f"{fastest['energy_j']:.1f} J, largest gap {100 * max(gaps):.3f} %"
    )
