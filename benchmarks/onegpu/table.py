"""Tables of Markdown."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A section of the record: what it shows, and its rows."""

    title: str
    says: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]

    def __str__(self) -> str:
        lines = [_line(self.columns), _line("---" for _ in self.columns), *map(_line, self.rows)]
        return "\n".join([f"## {self.title}", "", self.says, "", *lines, ""])


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
