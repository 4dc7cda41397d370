"""Tables of the operator graph and of the partitions: reading, and the rows that are written, without torch."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from kareus.artifacts import records
from kareus.artifacts.tables import REDO, read_table
from kareus.errors import ArtifactError, ConfigError
from kareus.graph.number_formats import Precision
from kareus.graph.records import TRACED, Batch, BlockGraph, Direction, Partition, Scope, Segment
from kareus.partition.tables import PARTITIONS, SEGMENTS

Record = TypeVar("Record")
READ = (Scope.BLOCK, Scope.EMBEDDING, Scope.HEAD)
"""Parts of a model that every graph has."""
FROZEN = (Scope.EMBEDDING, Direction.BACKWARD)
"""Part that a graph lacks where the weights of the embedding are frozen."""


def read_graphs(path: Path) -> dict[Batch, BlockGraph]:
    """Read the graph of a microbatch and, where there is one, of a nanobatch.

    Raises:
        ArtifactError: no such table, or its rows are no graph.
    """
    rows = read_table(path, SEGMENTS).sort("position").to_dicts()
    batches = [batch for batch in Batch if any(row["batch"] == batch for row in rows)]
    unknown = {row["batch"] for row in rows} - set(batches)
    if unknown or Batch.MICROBATCH not in batches:
        names = ", ".join(sorted({row["batch"] for row in rows})) or "no rows"
        raise ArtifactError(f"{path}: batch: expected microbatch, and nanobatch if it is even; found {names}; {REDO}.")
    return {batch: _graph([row for row in rows if row["batch"] == batch], path) for batch in batches}


def read_partitions(path: Path) -> tuple[Partition, ...]:
    """Read the partitions.

    Raises:
        ArtifactError: no such table, or its rows are no partitions.
    """
    rows = read_table(path, PARTITIONS).drop("multiplicity").rename({"partition": "name"}).to_dicts()
    return tuple(_record(Partition, row, path) for row in rows)


def find_partition(path: Path, name: str) -> Partition:
    """Read the partition of that name.

    Raises:
        ArtifactError: no such table, no such partition, or its rows are no partitions.
    """
    partitions = read_partitions(path)
    partition = next((p for p in partitions if p.name == name), None)
    if partition is None:
        raise ArtifactError(f"{path}: no partition '{name}'; there are: {', '.join(p.name for p in partitions)}.")
    return partition


def _graph(rows: list[dict[str, Any]], path: Path) -> BlockGraph:
    parts: dict[tuple[Scope, Direction], tuple[Segment, ...]] = {}
    for row in rows:
        position = row["position"]
        segment = _record(Segment, {key: row[key] for key in row if key not in ("batch", "position")}, path)
        before = parts.setdefault((segment.scope, segment.direction), ())
        if position != len(before):
            raise ArtifactError(
                f"{path}: {segment.scope} {segment.direction}: position {position} follows {len(before)} rows; {REDO}."
            )
        parts[segment.scope, segment.direction] = (*before, segment)
    wanted = [place for place in itertools.product(READ, TRACED) if place != FROZEN]
    missing = [f"{scope} {direction}" for scope, direction in wanted if (scope, direction) not in parts]
    if missing:
        raise ArtifactError(f"{path}: no segments of {', '.join(missing)}; {REDO}.")
    return BlockGraph(
        forward=parts[Scope.BLOCK, Direction.FORWARD],
        backward=parts[Scope.BLOCK, Direction.BACKWARD],
        embedding_forward=parts[Scope.EMBEDDING, Direction.FORWARD],
        embedding_backward=parts.get((Scope.EMBEDDING, Direction.BACKWARD), ()),  # none where it is frozen
        head_forward=parts[Scope.HEAD, Direction.FORWARD],
        head_backward=parts[Scope.HEAD, Direction.BACKWARD],
        dense_forward=parts.get((Scope.DENSE_BLOCK, Direction.FORWARD), ()),
        dense_backward=parts.get((Scope.DENSE_BLOCK, Direction.BACKWARD), ()),
    )


def _record(cls: type[Record], plain: dict[str, Any], path: Path) -> Record:
    collective = plain["collective"]
    if collective is not None:
        said = {name: value for name, value in collective.items() if value != ONE_MESSAGE.get(name)}
        plain = plain | {"collective": said}
    try:
        return records.from_plain(cls, plain)
    except ConfigError as error:
        raise ArtifactError(f"{path}: {error} {REDO}.") from error


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
