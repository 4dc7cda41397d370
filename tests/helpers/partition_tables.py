"""Files of the tables that extraction writes."""

from collections.abc import Mapping
from pathlib import Path

from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import write_table
from kareus.graph.records import Batch, BlockGraph, Partition
from kareus.partition.read import partition_rows, segment_rows
from kareus.partition.tables import PARTITIONS, SEGMENTS


def write_graphs(path: Path, graphs: Mapping[Batch, BlockGraph], provenance: Provenance) -> None:
    write_table(path, SEGMENTS.frame(segment_rows(graphs)), SEGMENTS, provenance)


def write_partitions(path: Path, multiplicities: Mapping[Partition, int], provenance: Provenance) -> None:
    write_table(path, PARTITIONS.frame(partition_rows(multiplicities)), PARTITIONS, provenance)
