"""Command `profile`: measure components and whole instructions at every clock of the search, partitions at some."""

import argparse
import functools
import logging
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, check_folder, table
from kareus.artifacts.provenance import check_subject
from kareus.artifacts.tables import read_provenance, write_table
from kareus.partition.config import subject_of
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.profile.bench import open_bench, progress_file
from kareus.profile.config import ProfileSlice
from kareus.profile.instructions import profile_instructions
from kareus.profile.tables import COMPONENTS, PROFILED_INSTRUCTIONS
from kareus.progress.journal import Journal

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs, the store and the outputs."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--segments", type=Path, required=True, help="operator graph (Parquet)")
    parser.add_argument("--store", type=Path, required=True, help="folder of the measurement store")
    parser.add_argument("--components", type=Path, required=True, help="costs of components to write (Parquet)")
    parser.add_argument("--instructions", type=Path, required=True, help="costs of instructions to write (Parquet)")
    parser.add_argument("--progress", type=Path, help="journal for those who watch, kept while profiling (JSON)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure what the store does not have yet, then write both tables."""
    outputs = [(arguments.components, table(COMPONENTS)), (arguments.instructions, table(PROFILED_INSTRUCTIONS))]
    check_files(arguments, [*outputs, *progress_file(arguments.progress)])
    check_folder(arguments.store, force=arguments.force)
    config = load_slice(arguments.config, ProfileSlice)
    check_subject(subject_of(config), {str(arguments.segments): read_provenance(arguments.segments, SEGMENTS)})
    graphs = read_graphs(arguments.segments)
    bench = open_bench(config)
    with bench.profiler(arguments.store, "instructions", graphs) as profiler:
        tables = profile_instructions(config, graphs, profiler, functools.partial(Journal, arguments.progress))
    logger.info("components and instructions at every clock, partitions at some: %s", profiler.tally)
    provenance = bench.provenance(subject_of(config))
    write_table(arguments.components, tables.components, COMPONENTS, provenance)
    write_table(arguments.instructions, tables.instructions, PROFILED_INSTRUCTIONS, provenance)
