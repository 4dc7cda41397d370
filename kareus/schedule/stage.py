"""Command `schedule`: write the search space of every partition and print its size."""

import argparse
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, write_table
from kareus.partition.read import read_partitions
from kareus.partition.tables import PARTITIONS
from kareus.schedule.config import ScheduleSlice
from kareus.schedule.space import enumerate_spaces
from kareus.schedule.tables import SPACE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the inputs and the output."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--partitions", type=Path, required=True, help="partitions (Parquet)")
    parser.add_argument("--space", type=Path, required=True, help="search spaces to write (Parquet)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Enumerate the candidates of every partition."""
    check_files(arguments, [(arguments.space, table(SPACE))])
    config = load_slice(arguments.config, ScheduleSlice)
    frame = enumerate_spaces(config, read_partitions(arguments.partitions))
    parents = {str(arguments.partitions): read_provenance(arguments.partitions, PARTITIONS)}
    write_table(arguments.space, frame, SPACE, derived(content_hash(config), parents))
