"""Tables for people: cells of text under heads in groups, as the terminal prints and a page shows them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

DASH = "\u2013"
Item = TypeVar("Item")
"""What a row of a sheet is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetRow:
    """One row."""

    cells: tuple[str, ...]
    link: str | None = None
    """Place, relative to the page, that its first cell leads to."""
    note: str = ""
    """What a page shows in place of the cells after the first."""
    is_ours: bool = False
    """Whether it is of `kareus`, and highlighted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table."""

    caption: str
    heads: tuple[tuple[str, str], ...]
    """Group and name of each column; neighbours of one group share its heading."""
    rows: tuple[SheetRow, ...]
    texts: int = 1
    """Columns, from the first, that are text."""
    source: str = ""
    """Table among the downloads that holds its numbers."""
    note: str = ""

    @property
    def our_columns(self) -> frozenset[int]:
        """Columns of `kareus` beside those of other methods, which are emphasised."""
        return frozenset(i for i, head in enumerate(self.heads) if "kareus" in head)


def sheet_of(
    caption: str,
    items: Iterable[Item],
    columns: Sequence[tuple[str | tuple[str, str], Callable[[Item], str]]],
    *,
    texts: int = 1,
    source: str = "",
    note: str = "",
    link: Callable[[Item], str | None] = lambda item: None,
    ours: str | None = None,
) -> Sheet:
    """Return a sheet with a row for each of `items`.

    Args:
        caption: of the sheet.
        items: what the rows are about.
        columns: head and cell of each column; the head of a column in a group is the group's and its name.
        texts: as of `Sheet`, as `source` and `note`.
        source: table among the downloads.
        note: below the sheet.
        link: place that the first cell of a row leads to.
        ours: cell by which a row is highlighted.
    """
    rows = []
    for item in items:
        cells = tuple(cell(item) for _, cell in columns)
        rows.append(SheetRow(cells=cells, link=link(item), is_ours=ours in cells))
    names = tuple(("", head) if isinstance(head, str) else head for head, _ in columns)
    return Sheet(caption=caption, heads=names, rows=tuple(rows), texts=texts, source=source, note=note)


def sheet_text(sheet: Sheet) -> list[list[str]]:
    """Two blocks of lines for a terminal: the caption, and the table with groups above their columns."""
    lines = table([name for _, name in sheet.heads], [row.cells for row in sheet.rows], texts=sheet.texts)
    head = [_group_line(sheet)] if _is_grouped(sheet) else []
    return [[sheet.caption], [*head, *lines, *([sheet.note] if sheet.note else [])]]


def blocks_text(blocks: Iterable[Sequence[str]]) -> str:
    """Return blocks of lines as a text for a terminal: an empty line between them, a line feed at the end."""
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _group_line(sheet: Sheet) -> str:
    columns = zip(*(row.cells for row in sheet.rows), strict=True) if sheet.rows else ((),) * len(sheet.heads)
    widths = [max(map(len, (name, *cells))) for (_, name), cells in zip(sheet.heads, columns, strict=True)]
    line, at = "", 0
    for group, names in sheet_groups(sheet):
        width = sum(widths[at : at + len(names)]) + 2 * (len(names) - 1)
        line += group.center(width) + "  "
        at += len(names)
    return line.rstrip()


def sheet_groups(sheet: Sheet) -> list[tuple[str, list[str]]]:
    """Return the groups of heads, each with the names under it."""
    groups: list[tuple[str, list[str]]] = []
    for group, name in sheet.heads:
        if group and groups and groups[-1][0] == group:
            groups[-1][1].append(name)
        else:
            groups.append((group, [name]))
    return groups


def _is_grouped(sheet: Sheet) -> bool:
    return any(group for group, _ in sheet.heads)


def heads(groups: Sequence[tuple[str, Sequence[str]]]) -> tuple[tuple[str, str], ...]:
    """Heads of groups and the names under each."""
    return tuple((group, name) for group, names in groups for name in names)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> list[str]:
    """Lay out cells in columns: the first `texts` to the left, numbers to the right, under a rule."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    rule = ["\u2500" * width for width in widths]
    return [
        "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, rule, *rows)
    ]


def percent_within(value: float | None, error: float | None) -> str:
    """Return a percentage with its standard error in points, if there is one."""
    if value is None or not error:
        return percent(value)
    return f"{percent(value).removesuffix(' %')}\u00b1{error:.1f} %"


def percent(value: float | None, *, digits: int = 1) -> str:
    """Return a percentage, or a dash if there is none."""
    return DASH if value is None else f"{value:z.{digits}f} %"
