"""The durable store: rows that survive a kill as soon as they are appended.

Snakemake deletes a job's outputs before it starts it again, so measurements are kept apart from them, on
shelves named by the content of what was measured. A shelf is a folder with one Parquet table and a
journal of the rows appended since: a sealed line of JSON each, synced to disk at most every
`SYNC_EVERY_S`. Closing (or the next opening) folds the journal into the table.

A damaged line or table is never read and never deleted: it is set aside in a file `*.damaged` beside
its place, and what it held is measured again.
"""

import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import polars as pl

from kareus.artifacts.files import (
    free_name,
    make_folder,
    read_bytes,
    remove_temporaries,
    set_aside,
    sync_folder,
    write_atomically,
)
from kareus.artifacts.locks import exclusive_lock
from kareus.artifacts.provenance import Provenance
from kareus.artifacts.records import LEAST_INTEGER, MOST_INTEGER, content_hash, parse_json
from kareus.artifacts.seals import sealed, unsealed
from kareus.artifacts.tables import REDO, Column, Row, TableSchema, read_provenance, read_table, write_table
from kareus.errors import ArtifactError, ConfigError, DamagedFileError

logger = logging.getLogger(__name__)

JOURNAL = "journal.jsonl"
"""Name of the journal of every shelf."""
SYNC_EVERY_S = 0.1
"""Least time between two syncs of a journal.

Rows of real GPUs take seconds each, so each is synced. Hundreds of simulated ones a second would wait for the disk
longer than for what they are; a power cut costs those of a tenth of a second.
"""


class RowShelf:
    """Rows of one table by their key, in memory alone; `Shelf` is one that survives a kill."""

    def __init__(self, schema: TableSchema) -> None:
        """Start empty; the key of `schema` identifies rows."""
        self._schema = schema
        self._rows: dict[tuple[Any, ...], Row] = {}

    def get(self, key: Sequence[Any]) -> Row | None:
        """Return the row with this key, or None."""
        return self._rows.get(tuple(key))

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order in which they were appended."""
        return list(self._rows.values())

    def append(self, row: Row) -> None:
        """Add a row; one of the same key is replaced.

        Raises:
            ArtifactError: the row does not follow the schema; it is not added.
        """
        check_row(row, self._schema, self._schema.name)
        self._remember(row)

    def _remember(self, row: Row) -> None:
        self._rows[self._schema.key_of(row)] = row


class Shelf(RowShelf):
    """A shelf on disk, held by one process at a time; use it in a `with` statement."""

    def __init__(self, folder: Path, schema: TableSchema, provenance: Provenance) -> None:
        """Name the shelf; nothing is touched before it is entered."""
        super().__init__(schema)
        self.folder = folder
        self._table = folder / f"{schema.name}.parquet"
        self._journal = folder / JOURNAL
        self._provenance = provenance
        self._testbed = content_hash((provenance.testbed, provenance.seed))
        self._synced_s = -math.inf

    def __enter__(self) -> Self:
        """Take the lock, clear away what a kill left half written, and read what is there.

        Damaged lines and a damaged table are set aside, with a line in the log.

        Raises:
            ArtifactError: the table or the journal is of another schema version, or was measured on another testbed.
        """
        make_folder(self.folder)
        self._lock = exclusive_lock(self.folder / "lock")
        self._lock.__enter__()
        try:
            remove_temporaries(self._table)
            remove_temporaries(self._journal)
            self._load()
            self._handle: IO[bytes] = self._journal.open("ab")
            sync_folder(self.folder)  # or a power cut could lose the journal with all its synced lines
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Merge the journal into the table and release the lock, also after an error."""
        try:
            self._handle.close()  # writes what a full disk refused before, and may be refused again
            self._fold()
        finally:
            self._lock.__exit__(None, None, None)

    def append(self, row: Row) -> None:
        """Add a row; when this returns, a kill cannot lose it, nor a power cut unless one was just synced.

        Raises:
            ArtifactError: the row does not follow the schema; it is not added.
        """
        check_row(row, self._schema, str(self._journal))
        line = sealed({"schema_version": self._schema.version, "testbed": self._testbed, "row": row})
        self._handle.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._handle.flush()
        if time.perf_counter() - self._synced_s >= SYNC_EVERY_S:
            os.fsync(self._handle.fileno())
            self._synced_s = time.perf_counter()
        self._remember(row)

    def _load(self) -> None:
        if self._table.exists():
            self._load_table()
        if self._journal.exists():
            self._load_journal()

    def _load_table(self) -> None:
        try:
            frame, provenance = read_table(self._table, self._schema), read_provenance(self._table, self._schema)
        except DamagedFileError as error:
            problem, aside = str(error).removesuffix(f"; {REDO}."), set_aside(self._table)
            logger.warning("%s; it is kept as %s, and its rows are measured again.", problem, aside.name)
            return
        if provenance.testbed != self._provenance.testbed or provenance.seed != self._provenance.seed:
            testbed = f"{provenance.testbed.label if provenance.testbed else 'unknown'}, seed {provenance.seed}"
            raise self._of_another_testbed(self._table, testbed)
        for row in frame.iter_rows(named=True):
            self._remember(row)

    def _load_journal(self) -> None:
        lines, torn = _lines(self._journal)
        good, damaged = list[bytes](), dict[int, bytes]()
        for number, line in enumerate(lines, start=1):
            row = self._row(line)
            if row is None:
                damaged[number] = line
            else:
                good.append(line)
                self._remember(row)
        if damaged:
            self._set_aside(damaged, good)
        elif torn:  # the row that was in flight when the process died
            with self._journal.open("r+b") as handle:
                handle.truncate(self._journal.stat().st_size - len(torn))

    def _row(self, line: bytes) -> Row | None:
        """The row of a line; None if the line is not one that was written.

        Raises:
            ArtifactError: the line is as it was written, by another version of Kareus or on another testbed.
        """
        try:
            written = _unsealed_line(line)
        except ConfigError:
            return None
        if written.get("schema_version") != self._schema.version:
            raise ArtifactError(
                f"{self._journal}: schema version {written.get('schema_version')} of '{self._schema.name}', this "
                f"Kareus reads {self._schema.version}; move the folder away to measure anew."
            )
        if written.get("testbed") != self._testbed:
            raise self._of_another_testbed(self._journal, "testbed or seed differ")
        row = written.get("row")
        return row if isinstance(row, dict) and _row_problem(row, self._schema) is None else None

    def _of_another_testbed(self, path: Path, what: str) -> ArtifactError:
        return ArtifactError(f"{path}: measured on another testbed ({what}); move the folder away and rerun.")

    def _set_aside(self, damaged: Mapping[int, bytes], good: Sequence[bytes]) -> None:
        aside = _set_lines_aside(self._journal, damaged, good)
        logger.warning(
            "%s: %d of %d lines are damaged, or not sealed as this version of Kareus seals them (%s); they are kept in "
            "%s, and what they held is measured again.",
            self._journal,
            len(damaged),
            len(damaged) + len(good),
            shown_lines(list(damaged)),
            aside.name,
        )

    def _fold(self) -> None:
        if self._journal.stat().st_size:
            frame = self._schema.frame(list(self._rows.values())).sort(*self._schema.key)
            write_table(self._table, frame, self._schema, self._provenance)
        self._journal.unlink()
        sync_folder(self.folder)


def damaged_lines(path: Path) -> list[int]:
    """Return the numbers, from 1, of the lines of a journal that are not as they were written.

    What follows the last line's end is the row that was in flight when its process died, and counts as no line.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    lines, _ = _lines(path)
    return [number for number, line in enumerate(lines, start=1) if not _is_sealed(line)]


def set_damaged_lines_aside(path: Path) -> Path:
    """Move the damaged lines of a journal to a file in the same folder, and return its path."""
    lines, _ = _lines(path)
    damaged = {number: lines[number - 1] for number in damaged_lines(path)}
    return _set_lines_aside(path, damaged, [line for n, line in enumerate(lines, start=1) if n not in damaged])


def _set_lines_aside(journal: Path, damaged: Mapping[int, bytes], good: Sequence[bytes]) -> Path:
    """Keep damaged lines in a file of their own, then the journal without them; a kill between repeats both."""
    aside = free_name(journal)
    write_atomically(aside, lambda path: path.write_bytes(_joined(list(damaged.values()))))
    write_atomically(journal, lambda path: path.write_bytes(_joined(good)))
    return aside


def _lines(journal: Path) -> tuple[list[bytes], bytes]:
    """The whole lines of a journal, and what follows the last one."""
    *lines, torn = read_bytes(journal).split(b"\n")
    return lines, torn


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _is_sealed(line: bytes) -> bool:
    try:
        _unsealed_line(line)
    except ConfigError:
        return False
    return True


def _unsealed_line(line: bytes) -> dict[str, Any]:
    """Content of a line of a journal.

    Raises:
        ConfigError: the line is not as it was written.
    """
    try:
        return unsealed(parse_json(line.decode()))
    except UnicodeDecodeError:
        raise ConfigError("not a text") from None


def shown_lines(numbers: Sequence[int]) -> str:
    """Return numbers of lines for people: the first of many."""
    most = 10
    return f"line {', '.join(map(str, numbers[:most]))}{', ...' if len(numbers) > most else ''}"


def check_row(row: Mapping[str, Any], schema: TableSchema, where: str) -> None:
    """Check that `row` follows `schema`.

    Raises:
        ArtifactError: it does not; the message begins with `where`.
    """
    problem = _row_problem(row, schema)
    if problem:
        raise ArtifactError(f"{where}: a row was not added, {problem}; measure it again.")


def _row_problem(row: Mapping[str, Any], schema: TableSchema) -> str | None:
    """Return why `row` is no row of `schema`, or None; like `problem_of` of tables, without the cost of a frame."""
    different = sorted(set(row) ^ set(schema.polars))
    if different:
        return f"columns differ from the schema of '{schema.name}' at {', '.join(different)}"
    problems = (_value_problem(row[column.name], column) for column in schema.columns)
    return next((problem for problem in problems if problem), None)


def _value_problem(value: Any, column: Column) -> str | None:
    if value is None:
        return None if column.nullable else f"empty values in {column.name}"
    if not _fits(value, column.dtype):
        return f"has {value!r} for {column.name}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"infinite numbers or none at all (NaN) in {column.name}"
    if column.positive and not value > 0:
        return f"numbers that are not greater than 0 in {column.name}"
    return None


def _fits(value: Any, dtype: Any) -> bool:
    """Whether `value` is of a polars data type; JSON may write a float without a point."""
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(_fits(item, dtype.inner) for item in value)
    kind = dtype.to_python()
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int) and not LEAST_INTEGER <= value <= MOST_INTEGER:
        return False
    return isinstance(value, (int, float) if kind is float else kind)
