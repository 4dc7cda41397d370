"""Command `partition`: extract the operator graph of a block and find its partitions."""

import argparse
import logging
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.outputs import add_force, check_files, table
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import content_hash
from kareus.graph.records import Partition
from kareus.partition.config import PartitionSlice
from kareus.partition.extract import extract, partitions_of
from kareus.partition.tables import PARTITIONS, SEGMENTS
from kareus.partition.write import write_graphs, write_partitions

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the input and the outputs."""
    parser.add_argument("--config", type=Path, required=True, help="configuration slice (YAML)")
    parser.add_argument("--segments", type=Path, required=True, help="operator graph to write (Parquet)")
    parser.add_argument("--partitions", type=Path, required=True, help="partitions to write (Parquet)")
    add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Trace the model, write what was found and print one line for each partition."""
    check_files(arguments, [(arguments.segments, table(SEGMENTS)), (arguments.partitions, table(PARTITIONS))])
    config = load_slice(arguments.config, PartitionSlice)
    graphs = extract(config.model, config.parallelism, config.microbatch_size, config.sequence_length)
    multiplicities = partitions_of(graphs, config)
    provenance = Provenance(config_hash=content_hash(config), subject=content_hash(config))
    write_graphs(arguments.segments, graphs, provenance)
    write_partitions(arguments.partitions, multiplicities, provenance)
    for partition, multiplicity in multiplicities.items():
        logger.info("%s", describe(partition, multiplicity))
    if not multiplicities:
        logger.info("no partitions: a block has no collectives, or the microbatch cannot be halved")


def describe(partition: Partition, multiplicity: int) -> str:
    """One line on a partition, for people."""
    c = partition.collective
    operators = " ".join(o.name for o in partition.operators)
    message = f"{c.message_bytes / 1e6:.1f} MB over {c.group} of {c.group_size}"
    return f"{partition.name}: {operators} beside {c.kind} of {message}, {multiplicity} per block"
