"""Command `schedule`: write the search space of every partition and print its size."""

import argparse
import logging
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, write_table
from kareus.partition.read import read_partitions
from kareus.partition.tables import PARTITIONS
from kareus.schedule.config import ScheduleSlice
from kareus.schedule.space import search_space
from kareus.schedule.tables import SPACE

logger = logging.getLogger(__name__)


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
    rows = []
    for partition in read_partitions(arguments.partitions):
        candidates = search_space(partition, config.gpu, config.space)
        launches = sorted({c.launch for c in candidates})
        logger.info(
            "%s: %d candidates (%d frequencies x %d SM counts x %d of %d launch operators)",
            partition.name,
            len(candidates),
            len({c.frequency_mhz for c in candidates}),
            len({c.sm_count for c in candidates}),
            len(launches),
            len(partition.operators),
        )
        rows += [
            {
                "partition": partition.name,
                "candidate": number,
                "frequency_mhz": candidate.frequency_mhz,
                "sm_count": candidate.sm_count,
                "launch": partition.operators[candidate.launch].name,
            }
            for number, candidate in enumerate(candidates)
        ]
    parents = {str(arguments.partitions): read_provenance(arguments.partitions, PARTITIONS)}
    write_table(arguments.space, SPACE.frame(rows), SPACE, derived(content_hash(config), parents))
