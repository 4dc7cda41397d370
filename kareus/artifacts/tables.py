"""Tables: Parquet files with one declared schema each, checked when written and when read.

A schema is declared once, as a `TableSchema` in the `tables.py` of the room that writes it. Provenance
and the schema's version travel in the file's key-value metadata under the key `kareus`, with a hash of the
file's bytes: Parquet itself does not notice a flipped bit, and reads other numbers. The hash is checked
before anything is parsed, since readers of Parquet may crash on damaged bytes.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts import records
from kareus.artifacts.files import read_bytes, write_atomically
from kareus.artifacts.parquet_footer import MAGIC, FooterError, key_values
from kareus.artifacts.provenance import Provenance
from kareus.errors import ArtifactError, ConfigError, DamagedFileError

METADATA_KEY = "kareus"
REDO = "delete it and rerun the stage that makes it"

UNSEALED = "0" * 64
"""Stands in the metadata for the hash while the bytes that it is of are hashed; as long as the hash."""
_SEAL = b'"content_hash":"'
_CORRUPT = "corrupt or truncated Parquet file"

Row = dict[str, Any]
"""One row of a table: values by column."""

_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


@dataclass(frozen=True)
class Column:
    """One column: its name carries the unit, its meaning is what the reference page prints."""

    name: str
    dtype: Any
    """A polars data type; structs and lists for nested choices."""
    meaning: str
    nullable: bool = False
    positive: bool = False
    """Whether every number must be greater than 0: times and energies of what ran."""


@dataclass(frozen=True)
class TableSchema:
    """Declaration of a table."""

    name: str
    version: int
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """Columns that identify a row."""

    @cached_property
    def polars(self) -> pl.Schema:
        """The columns as a polars schema."""
        return pl.Schema({c.name: c.dtype for c in self.columns})

    def key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values that identify a row."""
        return tuple(row[column] for column in self.key)

    def frame(self, rows: list[dict[str, Any]]) -> pl.DataFrame:
        """Build a frame of this schema from plain rows."""
        return pl.DataFrame(rows, schema=self.polars, orient="row")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """Metadata of a file."""

    table: str
    schema_version: int
    provenance: Provenance
    content_hash: str
    """SHA-256 of the file's bytes with `UNSEALED` in its place."""


def write_table(path: Path, frame: pl.DataFrame, schema: TableSchema, provenance: Provenance) -> None:
    """Write `frame` atomically.

    Raises:
        ArtifactError: the frame does not follow `schema` (a fault of the caller; nothing is written).
    """
    problem = problem_of(frame, schema)
    if problem:
        raise ArtifactError(f"{path}: not written, {problem}.")
    header = _Header(
        table=schema.name,
        schema_version=schema.version,
        provenance=provenance.stamped(),
        content_hash=UNSEALED,
    )
    written = io.BytesIO()
    frame.write_parquet(written, metadata={METADATA_KEY: records.canonical_json(header)})
    content = _with_hash(written.getvalue(), _content_hash(written.getvalue()))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_table(path: Path, schema: TableSchema) -> pl.DataFrame:
    """Read the table at `path`.

    Raises:
        DamagedFileError: corrupt, truncated, or without the hash that Kareus writes; it is not parsed.
        ArtifactError: missing, of another table or schema version, or with wrong columns, nulls, numbers out of
            bounds or repeated keys.
    """
    content = _read(path)
    _check_header(path, content, schema)
    try:
        frame = pl.read_parquet(io.BytesIO(content))
    except _UNREADABLE as error:
        raise _unreadable(path, str(error)) from error
    problem = problem_of(frame, schema)
    if problem:
        raise ArtifactError(f"{path}: {problem}; {REDO}.")
    return frame


def read_provenance(path: Path, schema: TableSchema) -> Provenance:
    """Read only the provenance of the table at `path`.

    Raises:
        ArtifactError: as `read_table`, for what the metadata can tell.
    """
    return _check_header(path, _read(path), schema).provenance


def table_name(path: Path) -> str | None:
    """Return the name of the table in a file, of any version of its schema; None if it holds none or is damaged."""
    try:
        return _header(path, _read(path)).table
    except ArtifactError:
        return None


def _read(path: Path) -> bytes:
    """Bytes of the file, once they are those that were written."""
    if not path.is_file():
        raise ArtifactError(f"{path}: no such file; rerun the stage that makes it.")
    try:
        content = read_bytes(path)
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}; check its permissions and its disk.") from error
    problem = _damage(content)
    if problem:
        raise DamagedFileError(f"{path}: {problem}; {REDO}.")
    return content


def check_bytes(path: Path) -> None:
    """Check that a Parquet file is as Kareus wrote it; one that others wrote passes if its metadata can be parsed.

    Raises:
        ArtifactError: it is not, or cannot be read.
    """
    try:
        _read(path)
    except DamagedFileError:
        if is_written_by_kareus(path) is not False:
            raise


def is_written_by_kareus(path: Path) -> bool | None:
    """Return whether a Parquet file has metadata of Kareus; None if that cannot be parsed, or the file not be read."""
    try:
        return METADATA_KEY in key_values(read_bytes(path))
    except (OSError, FooterError):
        return None


def _damage(content: bytes) -> str | None:
    """Return how the bytes of a table's file differ from those that were written, or None."""
    place = content.rfind(_SEAL)
    if place >= 0:
        is_whole = content[place + len(_SEAL) :][: len(UNSEALED)] == _content_hash(content).encode()
        return None if is_whole else f"{_CORRUPT} (its bytes are not those that were written)"
    if content.startswith(MAGIC) and content.endswith(MAGIC):
        return "a Parquet file that Kareus did not write, or a damaged one: it has no hash of its bytes"
    return f"{_CORRUPT} (it does not begin and end as one)"


def _content_hash(content: bytes) -> str:
    return hashlib.sha256(_with_hash(content, UNSEALED)).hexdigest()


def _with_hash(content: bytes, content_hash: str) -> bytes:
    """Return the bytes of a table's file with another hash in its metadata, which is at the end of the file."""
    start = content.rindex(_SEAL) + len(_SEAL)
    return content[:start] + content_hash.encode() + content[start + len(content_hash) :]


def _header(path: Path, content: bytes) -> _Header:
    try:
        text = pl.read_parquet_metadata(io.BytesIO(content)).get(METADATA_KEY)
    except _UNREADABLE as error:
        raise _unreadable(path, str(error)) from error
    try:
        return records.from_plain(_Header, records.parse_json(text or ""))
    except ConfigError as error:
        raise ArtifactError(f"{path}: metadata of another version of Kareus ({error}); {REDO}.") from error


def _check_header(path: Path, content: bytes, schema: TableSchema) -> _Header:
    header = _header(path, content)
    if header.table != schema.name:
        raise ArtifactError(f"{path}: holds the table '{header.table}', expected '{schema.name}'; check the path.")
    if header.schema_version != schema.version:
        raise ArtifactError(
            f"{path}: schema version {header.schema_version} of '{schema.name}', this Kareus reads "
            f"{schema.version}; {REDO}, or use the Kareus that wrote it ({header.provenance.kareus_version})."
        )
    return header


def _unreadable(path: Path, reason: str) -> ArtifactError:
    """The error for what polars cannot read although its bytes are those that were written."""
    first_line = reason.partition("\n")[0]
    return ArtifactError(f"{path}: {_CORRUPT} ({first_line}); {REDO}.")


def problem_of(frame: pl.DataFrame, schema: TableSchema) -> str | None:
    """Return why `frame` is no table of `schema`, or None."""
    expected = schema.polars
    if frame.schema != expected:
        wrong = sorted(
            set(expected) ^ set(frame.columns) or {c for c in expected if frame.schema[c] != expected[c]}
        ) or ["their order"]
        return f"columns differ from the schema of '{schema.name}' at {', '.join(wrong)}"
    with_nulls = [c.name for c in schema.columns if not c.nullable and frame[c.name].null_count()]
    if with_nulls:
        return f"empty values in {', '.join(with_nulls)}"
    endless = [c.name for c in schema.columns if c.dtype.is_float() and not frame[c.name].is_finite().all()]
    if endless:
        return f"infinite numbers or none at all (NaN) in {', '.join(endless)}"
    too_small = [c.name for c in schema.columns if c.positive and not (frame[c.name] > 0).all()]
    if too_small:
        return f"numbers that are not greater than 0 in {', '.join(too_small)}"
    if frame.select(schema.key).is_duplicated().any():
        return f"repeated key ({', '.join(schema.key)})"
    return None
