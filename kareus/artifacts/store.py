"""The durable store: rows that survive a kill as soon as they are appended.

Snakemake deletes a job's outputs before it starts it again, so measurements live beside them, on
shelves named by the content of what was measured. A shelf is a folder with one Parquet table and a
journal of the rows appended since: a line of JSON each, synced to disk. Closing (or the next opening)
folds the journal into the table.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import polars as pl

from kareus.artifacts.files import exclusive_lock, remove_temporaries, sync_folder
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.tables import TableSchema, problem_of, read_provenance, read_table, write_table
from kareus.errors import ArtifactError

Row = dict[str, Any]


class Shelf:
    """One shelf, held by one process at a time; use it in a `with` statement."""

    def __init__(self, folder: Path, schema: TableSchema, provenance: Provenance) -> None:
        """Name the shelf; nothing is touched before it is entered."""
        self.folder = folder
        self._table = folder / f"{schema.name}.parquet"
        self._journal = folder / "journal.jsonl"
        self._schema = schema
        self._provenance = provenance
        self._rows: dict[tuple[Any, ...], Row] = {}

    def __enter__(self) -> Self:
        """Take the lock, clear away what a kill left half written, and read what is there.

        Raises:
            ArtifactError: the table or the journal is corrupt, of another schema version, or was measured on
                another testbed.
        """
        self._lock = exclusive_lock(self.folder / "lock")
        self._lock.__enter__()
        try:
            remove_temporaries(self._table)
            self._load()
            self._handle: IO[bytes] = self._journal.open("ab")
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Fold the journal into the table and let go of the lock, however the work ended."""
        self._handle.close()
        try:
            self._fold()
        finally:
            self._lock.__exit__(None, None, None)

    def get(self, key: Sequence[Any]) -> Row | None:
        """The row with this key, or None."""
        return self._rows.get(tuple(key))

    def append(self, row: Row) -> None:
        """Add a row; when this returns, a kill cannot lose it.

        Raises:
            ArtifactError: the row does not follow the schema; it is not added.
        """
        problem = self._problem(row)
        if problem:
            raise ArtifactError(f"{self._journal}: a row was not added, {problem}; measure it again.")
        line = json.dumps({"schema_version": self._schema.version, **row}, allow_nan=False)
        self._handle.write(line.encode() + b"\n")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self._remember(row)

    def _remember(self, row: Row) -> None:
        self._rows[tuple(row[column] for column in self._schema.key)] = row

    def _load(self) -> None:
        if self._table.exists():
            for row in read_table(self._table, self._schema).iter_rows(named=True):
                self._remember(row)
            self._check_testbed(read_provenance(self._table, self._schema))
        if self._journal.exists():
            self._load_journal()

    def _check_testbed(self, found: Provenance) -> None:
        if found.testbed != self._provenance.testbed or found.seed != self._provenance.seed:
            raise ArtifactError(
                f"{self._table}: measured on another testbed ({found.testbed.label if found.testbed else 'unknown'}, "
                f"seed {found.seed}); move the folder away and rerun."
            )

    def _load_journal(self) -> None:
        lines = self._journal.read_bytes().split(b"\n")
        whole, torn = lines[:-1], lines[-1]
        for number, line in enumerate(whole, start=1):
            self._remember(self._parse(line, number))
        if torn:  # the row that was in flight when the process died
            with self._journal.open("r+b") as handle:
                handle.truncate(self._journal.stat().st_size - len(torn))

    def _parse(self, line: bytes, number: int) -> Row:
        row = _row(line)
        if row is None or "schema_version" not in row:
            raise self._spoilt(number, "is corrupt")
        version = row.pop("schema_version")
        if version != self._schema.version:
            raise ArtifactError(
                f"{self._journal}: schema version {version} of '{self._schema.name}', this Kareus reads "
                f"{self._schema.version}; move the folder away to measure anew."
            )
        if set(row) != set(self._schema.polars):
            raise self._spoilt(number, "lacks columns")
        for column in self._schema.columns:
            if not _fits(row[column.name], column.dtype) and not (column.nullable and row[column.name] is None):
                raise self._spoilt(number, f"has {row[column.name]!r} for {column.name}")
        problem = self._problem(row)
        if problem:
            raise self._spoilt(number, f"cannot be right: {problem}")
        return row

    def _spoilt(self, number: int, problem: str) -> ArtifactError:
        return ArtifactError(f"{self._journal}: line {number} {problem}; remove that line to measure its row again.")

    def _problem(self, row: Row) -> str | None:
        """What keeps `row` from being one of the schema, or None."""
        different = sorted(set(row) ^ set(self._schema.polars))
        if different:
            return f"columns differ from the schema of '{self._schema.name}' at {', '.join(different)}"
        try:
            return problem_of(self._schema.frame([row]), self._schema)
        except (pl.exceptions.PolarsError, TypeError) as error:
            return str(error).partition("\n")[0]

    def _fold(self) -> None:
        if self._journal.stat().st_size:
            frame = self._schema.frame(list(self._rows.values())).sort(*self._schema.key)
            write_table(self._table, frame, self._schema, self._provenance)
        self._journal.unlink()
        sync_folder(self.folder)


def _row(line: bytes) -> Row | None:
    """The row of a line, with its schema version; None if it is none, or has numbers that no row is written with."""
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number of JSON")


def _fits(value: Any, dtype: Any) -> bool:
    """Whether `value`, from JSON, is of a polars data type; JSON may write a float without a point."""
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(_fits(item, dtype.inner) for item in value)
    kind = dtype.to_python()
    return type(value) is kind or (kind is float and type(value) is int)
