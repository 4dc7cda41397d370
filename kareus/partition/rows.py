"""Rows of the tables of the operator graph and of the partitions; `kareus.partition.read` is the inverse."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kareus.artifacts import records
from kareus.graph.number_formats import Precision
from kareus.graph.records import Batch, BlockGraph, Partition, Segment

ONE_MESSAGE = {"sequences": 1, "nodes": 1, "per_node": 0, "between_share": 1.0}
"""What the tables say of a plain `Collective`."""
SIXTEEN_BITS = {"precision": str(Precision.BF16)}
"""What the tables say of operators that are no products of fewer bits."""


def segment_rows(graphs: Mapping[Batch, BlockGraph]) -> list[dict[str, Any]]:
    """Return the rows of the table `SEGMENTS`: every segment of `graphs`."""
    return [
        {"batch": str(batch), "position": position, **_plain(segment)}
        for batch, graph in graphs.items()
        for field in dataclasses.fields(graph)
        for position, segment in enumerate(getattr(graph, field.name))
    ]


def partition_rows(multiplicities: Mapping[Partition, int]) -> list[dict[str, Any]]:
    """Return the rows of the table `PARTITIONS`: partitions, and how often a block has each."""
    rows = []
    for partition, multiplicity in multiplicities.items():
        plain = _plain(partition)
        rows.append({"partition": plain.pop("name"), **plain, "multiplicity": multiplicity})
    return rows


def _plain(record: Segment | Partition) -> dict[str, Any]:
    """Return a record as plain data, with all that the tables say of its operators and its collective."""
    plain: dict[str, Any] = records.to_plain(record)
    plain["operators"] = [SIXTEEN_BITS | operator for operator in plain["operators"]]
    if plain["collective"] is not None:
        plain["collective"] = dict(ONE_MESSAGE) | plain["collective"]
    return plain
