"""Rows of the tables of the operator graph and of the partitions; `kareus.partition.read` is the inverse."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kareus.artifacts import records
from kareus.graph.records import Batch, BlockGraph, Partition


def segment_rows(graphs: Mapping[Batch, BlockGraph]) -> list[dict[str, Any]]:
    """Return the rows of the table `SEGMENTS`: every segment of `graphs`."""
    return [
        {"batch": str(batch), "position": position, **records.to_plain(segment)}
        for batch, graph in graphs.items()
        for field in dataclasses.fields(graph)
        for position, segment in enumerate(getattr(graph, field.name))
    ]


def partition_rows(multiplicities: Mapping[Partition, int]) -> list[dict[str, Any]]:
    """Return the rows of the table `PARTITIONS`: partitions, and how often a block has each."""
    rows = []
    for partition, multiplicity in multiplicities.items():
        plain = records.to_plain(partition)
        rows.append({"partition": plain.pop("name"), **plain, "multiplicity": multiplicity})
    return rows
