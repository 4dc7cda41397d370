"""Command `search`: run the rounds of one partition over the durable store."""

import argparse
import functools
import logging
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, check_folder, table
from kareus.artifacts.provenance import common_subject
from kareus.artifacts.tables import read_provenance, read_table, write_table
from kareus.partition.read import find_partition
from kareus.partition.tables import PARTITIONS
from kareus.profile.bench import open_bench, progress_file
from kareus.progress.journal import Journal
from kareus.schedule.tables import SPACE, space_of
from kareus.search.config import SearchSlice
from kareus.search.partition_search import search_partition
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs, the store and the outputs."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--partitions", type=Path, required=True, help="partitions (Parquet)")
    parser.add_argument("--space", type=Path, required=True, help="search spaces (Parquet)")
    parser.add_argument("--partition", required=True, help="name of the partition to search")
    parser.add_argument("--store", type=Path, required=True, help="folder of the measurement store")
    parser.add_argument("--candidates", type=Path, required=True, help="measured candidates to write (Parquet)")
    parser.add_argument("--rounds", type=Path, required=True, help="rounds to write (Parquet)")
    parser.add_argument("--proposals", type=Path, required=True, help="times of choosing to write (Parquet)")
    parser.add_argument("--progress", type=Path, help="journal for those who watch, kept while searching (JSON)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Search, measuring only what the store does not have."""
    _check_outputs(arguments)
    config = load_slice(arguments.config, SearchSlice)
    partition = find_partition(arguments.partitions, arguments.partition)
    space = space_of(read_table(arguments.space, SPACE), partition.name)
    bench = open_bench(config)
    provenance = bench.provenance(_subject(arguments.partitions, arguments.space))
    with bench.profiler(arguments.store, partition.name, partition) as profiler:
        tables = search_partition(config, partition, space, profiler, functools.partial(Journal, arguments.progress))
    logger.info("candidates: %s; looks: %s", profiler.tally, profiler.time_tally)
    write_table(arguments.candidates, tables.candidates, CANDIDATES, provenance)
    write_table(arguments.rounds, tables.rounds, ROUNDS, provenance)
    write_table(arguments.proposals, tables.proposals, PROPOSALS, provenance)


def _check_outputs(arguments: argparse.Namespace) -> None:
    tables = (
        (arguments.candidates, table(CANDIDATES)),
        (arguments.rounds, table(ROUNDS)),
        (arguments.proposals, table(PROPOSALS)),
    )
    check_files(arguments, [*tables, *progress_file(arguments.progress)])
    check_folder(arguments.store, force=arguments.force)


def _subject(partitions: Path, space: Path) -> str:
    """What both inputs are about."""
    return common_subject(
        {str(partitions): read_provenance(partitions, PARTITIONS), str(space): read_provenance(space, SPACE)}
    )
