"""Command `partition`: extract the operator graph of a block and find its partitions."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.stage import OutputTable, TableStage
from kareus.model.training_options import check_options
from kareus.partition.config import PartitionSlice, subject_of
from kareus.partition.extract import batch_sizes, operator_graphs, partitions_of
from kareus.partition.read import partition_rows, segment_rows
from kareus.partition.structure import dimensions_of, structure_of
from kareus.partition.tables import PARTITIONS, SEGMENTS
from kareus.partition.trace_cache import is_kept

TRACING = ("kareus.partition.trace", "torch._dynamo")
"""Modules that tracing imports, the second when torch makes its first fake tensor; they start no threads."""

logger = logging.getLogger(__name__)


def modules_of(argv: Sequence[str]) -> tuple[str, ...]:
    """Return modules that a command imports late, for the fork server: importing torch takes longer than tracing.

    Raises:
        KareusError: the configuration cannot be read.
        ValueError: the command names none.
    """
    config = load_slice(Path(argv[argv.index("--config") + 1]), PartitionSlice)
    sharded = config.model, config.parallelism
    sizes = batch_sizes(*sharded, config.microbatch_size).values()  # of one sequence the structure is another
    kernel = config.software.attention_kernel
    structures = {
        structure_of(*sharded, dimensions_of(*sharded, size, config.sequence_length), kernel) for size in sizes
    }
    return () if all(map(is_kept, structures)) else TRACING


def _compute(config: PartitionSlice) -> dict[str, pl.DataFrame]:
    check_options(config.training)
    graphs = operator_graphs(config)
    return {
        "segments": SEGMENTS.frame(segment_rows(graphs)),
        "partitions": PARTITIONS.frame(partition_rows(partitions_of(graphs, config))),
    }


def _report(_config: PartitionSlice, tables: Mapping[str, pl.DataFrame]) -> None:
    for row in tables["partitions"].iter_rows(named=True):
        logger.info("%s", describe(row))
    if tables["partitions"].is_empty():
        logger.info("no partitions: a block has no collectives, or the microbatch cannot be halved")


def describe(row: Mapping[str, Any]) -> str:
    """Return one line on a row of `PARTITIONS`, for people."""
    operators = " ".join(operator["name"] for operator in row["operators"])
    collective = row["collective"]
    message = f"{collective['message_bytes'] / 1e6:.1f} MB over {collective['group']} of {collective['group_size']}"
    return f"{row['partition']}: {operators} beside {collective['kind']} of {message}, {row['multiplicity']} per block"


STAGE: TableStage[PartitionSlice] = TableStage(
    config=PartitionSlice,
    outputs=(
        OutputTable(option="segments", schema=SEGMENTS, help="operator graph to write (Parquet)"),
        OutputTable(option="partitions", schema=PARTITIONS, help="partitions to write (Parquet)"),
    ),
    compute=_compute,
    subject=subject_of,
    report=_report,
)
add_arguments, run = STAGE.add_arguments, STAGE.run
