"""Command `partition`: extract the operator graph of a block and find its partitions."""

import logging
from collections.abc import Mapping
from typing import Any

import polars as pl

from kareus.artifacts.stage import OutputTable, TableStage
from kareus.partition.config import PartitionSlice, subject_of
from kareus.partition.extract import extract, partitions_of
from kareus.partition.rows import partition_rows, segment_rows
from kareus.partition.tables import PARTITIONS, SEGMENTS

logger = logging.getLogger(__name__)


def _compute(config: PartitionSlice) -> dict[str, pl.DataFrame]:
    graphs = extract(config.model, config.parallelism, config.microbatch_size, config.sequence_length)
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
