"""Writing the tables of the operator graph and of the partitions; `kareus.partition.read` is the inverse."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from kareus.artifacts import records
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import write_table
from kareus.graph.records import Batch, BlockGraph, Partition
from kareus.partition.tables import PARTITIONS, SEGMENTS


def write_graphs(path: Path, graphs: Mapping[Batch, BlockGraph], provenance: Provenance) -> None:
    """Write every segment of `graphs`."""
    rows = [
        {"batch": str(batch), "position": position, **records.to_plain(segment)}
        for batch, graph in graphs.items()
        for field in dataclasses.fields(graph)
        for position, segment in enumerate(getattr(graph, field.name))
    ]
    write_table(path, SEGMENTS.frame(rows), SEGMENTS, provenance)


def write_partitions(path: Path, multiplicities: Mapping[Partition, int], provenance: Provenance) -> None:
    """Write partitions and how often a block has each."""
    rows = []
    for partition, multiplicity in multiplicities.items():
        plain = records.to_plain(partition)
        rows.append({"partition": plain.pop("name"), **plain, "multiplicity": multiplicity})
    write_table(path, PARTITIONS.frame(rows), PARTITIONS, provenance)
