"""Downloadable tables of a page: as Parquet, whole, and as CSV for spreadsheets.

Rows name their workload and testbed, so that files of several reports can be concatenated.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.files import write_atomically
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import Column, TableSchema, read_table, write_table

LABELS = {
    "workload": Column("workload", pl.String, "name of the workload: its folder"),
    "testbed": Column("testbed", pl.String, "what was measured on, such as `simulated testbed, A100-SXM4-40GB`"),
    "sweep": Column("sweep", pl.String, "name of the sweep of the profiler"),
    "partition": Column("partition", pl.String, "partition that was searched"),
}
"""Columns that may precede those of a table."""

OF_WORKLOAD = ("workload", "testbed")
OF_PARTITION = (*OF_WORKLOAD, "partition")


def labelled_schema(schema: TableSchema, labels: tuple[str, ...]) -> TableSchema:
    """The schema with `labels` before its columns."""
    columns = tuple(LABELS[label] for label in labels)
    return dataclasses.replace(schema, columns=(*columns, *schema.columns), key=(*labels, *schema.key))


def labelled(frame: pl.DataFrame, labels: dict[str, str]) -> pl.DataFrame:
    """The frame with columns that hold the same text in every row before its own."""
    return frame.select(*(pl.lit(text, pl.String).alias(name) for name, text in labels.items()), pl.all())


def joined(
    schema: TableSchema, labels: tuple[str, ...], frames: Iterable[pl.DataFrame]
) -> tuple[TableSchema, pl.DataFrame]:
    """Return labelled frames of one table below one another, after their schema."""
    whole = labelled_schema(schema, labels)
    return whole, pl.concat([whole.frame([]), *frames])


def read_download(folder: Path, schema: TableSchema, labels: tuple[str, ...] = OF_WORKLOAD) -> pl.DataFrame:
    """Read a table that `write_downloads` wrote with these labels.

    Raises:
        ArtifactError: as `read_table`.
    """
    return read_table(folder / f"{schema.name}.parquet", labelled_schema(schema, labels))


def write_downloads(folder: Path, frame: pl.DataFrame, schema: TableSchema, provenance: Provenance) -> None:
    """Write a table into `folder`, as Parquet and as CSV; nested columns are in the Parquet file only."""
    write_table(folder / f"{schema.name}.parquet", frame, schema, provenance)
    flat: Any = frame.select(c.name for c in schema.columns if not c.dtype.is_nested())
    write_atomically(folder / f"{schema.name}.csv", flat.write_csv)
