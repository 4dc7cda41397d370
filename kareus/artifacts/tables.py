"""Tables: Parquet files with one declared schema each, checked when written and when read.

A schema is declared once, as a `TableSchema` in the `tables.py` of the room that writes it. Provenance
and the schema's version travel in the file's key-value metadata under the key `kareus`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts import records
from kareus.artifacts.files import write_atomically
from kareus.artifacts.provenance import Provenance
from kareus.errors import ArtifactError, ConfigError

METADATA_KEY = "kareus"
REDO = "delete it and rerun the stage that makes it"


@dataclass(frozen=True)
class Column:
    """One column: its name carries the unit, its meaning is what the reference page prints."""

    name: str
    dtype: Any
    """A polars data type; structs and lists for nested choices."""
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class TableSchema:
    """Declaration of a table."""

    name: str
    version: int
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns that identify a row."""

    @property
    def polars(self) -> pl.Schema:
        """The columns as a polars schema."""
        return pl.Schema({c.name: c.dtype for c in self.columns})

    def frame(self, rows: list[dict[str, Any]]) -> pl.DataFrame:
        """Build a frame of this schema from plain rows."""
        return pl.DataFrame(rows, schema=self.polars, orient="row")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What the metadata of a file says."""

    table: str
    schema_version: int
    provenance: Provenance


def write_table(path: Path, frame: pl.DataFrame, schema: TableSchema, provenance: Provenance) -> None:
    """Write `frame` atomically.

    Raises:
        ArtifactError: the frame does not follow `schema` (a fault of the caller; nothing is written).
    """
    problem = _problem(frame, schema)
    if problem:
        raise ArtifactError(f"{path}: not written, {problem}.")
    header = _Header(table=schema.name, schema_version=schema.version, provenance=provenance.stamped())
    metadata = {METADATA_KEY: records.canonical_json(header)}
    write_atomically(path, lambda temporary: frame.write_parquet(temporary, metadata=metadata))


def read_table(path: Path, schema: TableSchema) -> pl.DataFrame:
    """Read the table at `path`.

    Raises:
        ArtifactError: missing, corrupt or truncated, of another table or schema version, or with
            wrong columns, nulls or repeated keys.
    """
    _check_header(path, schema)
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error
    problem = _problem(frame, schema)
    if problem:
        raise ArtifactError(f"{path}: {problem}; {REDO}.")
    return frame


def read_provenance(path: Path, schema: TableSchema) -> Provenance:
    """Read only the provenance of the table at `path`.

    Raises:
        ArtifactError: as `read_table`, for what the metadata can tell.
    """
    return _check_header(path, schema).provenance


def _check_header(path: Path, schema: TableSchema) -> _Header:
    if not path.is_file():
        raise ArtifactError(f"{path}: no such file; rerun the stage that makes it.")
    try:
        text = pl.read_parquet_metadata(path).get(METADATA_KEY)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from error
    if text is None:
        raise ArtifactError(f"{path}: a Parquet file that Kareus did not write; expected the table '{schema.name}'.")
    try:
        header = records.from_plain(_Header, records.parse_json(text))
    except ConfigError as error:
        raise ArtifactError(f"{path}: metadata of another version of Kareus ({error}); {REDO}.") from error
    if header.table != schema.name:
        raise ArtifactError(f"{path}: holds the table '{header.table}', expected '{schema.name}'; check the path.")
    if header.schema_version != schema.version:
        raise ArtifactError(
            f"{path}: schema version {header.schema_version} of '{schema.name}', this Kareus reads "
            f"{schema.version}; {REDO}, or use the Kareus that wrote it ({header.provenance.kareus_version})."
        )
    return header


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    reason = str(error).splitlines()[0]
    return ArtifactError(f"{path}: corrupt or truncated Parquet file ({reason}); {REDO}.")


def _problem(frame: pl.DataFrame, schema: TableSchema) -> str | None:
    """What keeps `frame` from being a table of `schema`, or None."""
    expected = schema.polars
    if frame.schema != expected:
        wrong = sorted(
            set(expected) ^ set(frame.columns) or {c for c in expected if frame.schema[c] != expected[c]}
        ) or ["their order"]
        return f"columns differ from the schema of '{schema.name}' at {', '.join(wrong)}"
    with_nulls = [c.name for c in schema.columns if not c.nullable and frame[c.name].null_count()]
    if with_nulls:
        return f"empty values in {', '.join(with_nulls)}"
    if frame.select(schema.key).is_duplicated().any():
        return f"repeated key ({', '.join(schema.key)})"
    return None
