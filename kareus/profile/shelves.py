"""Shelves of measurements: their interface, and a shelf in memory."""

from collections.abc import Sequence
from typing import Any, Protocol

from kareus.artifacts.store import check_row
from kareus.artifacts.tables import Row, TableSchema


class RowShelf(Protocol):
    """Rows of one table by their key; `kareus.artifacts.store.Shelf` is one that survives a kill."""

    def get(self, key: Sequence[Any]) -> Row | None:
        """Return the row with this key, or None."""

    def append(self, row: Row) -> None:
        """Add a row."""


class MemoryShelf:
    """A shelf in memory, for callers without a store; it refuses the rows that a shelf on disk refuses."""

    def __init__(self, schema: TableSchema) -> None:
        """Start empty.

        Args:
            schema: table of the rows, whose key identifies them.
        """
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
        self._rows[self._schema.key_of(row)] = row
