"""Figures as data, declared once for the page and for papers.

`static/plot.js` draws a `Plot` as a reader's screen, colour scheme and pointer want it; `drawing.py` draws the same for
print. One drawing cannot serve both: text that fits a paper's column is too small on a telephone, and a file's colours
do not follow a reader's scheme.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import polars as pl

from kareus.artifacts.records import to_plain

PALETTE = {
    "ink": ("#16191d", "#eceef1"),
    "gray": ("#6f7782", "#98a1ae"),
    "orange": ("#c26400", "#f0a540"),
    "purple": ("#a8518a", "#d98fc0"),
    "green": ("#00855f", "#35c795"),
    "blue": ("#0067a8", "#5bb3f0"),
    "vermilion": ("#c8420a", "#ff7f50"),
    "olive": ("#80701a", "#cdbd5a"),
}
"""Colours on light paper and on dark; told apart with the common colour blindnesses, and shapes differ besides."""


class Shape(StrEnum):
    """Mark of a point."""

    CIRCLE = "circle"
    SQUARE = "square"
    TRIANGLE = "triangle"
    DIAMOND = "diamond"
    WEDGE = "wedge"
    CROSS = "cross"
    PLUS = "plus"
    RING = "ring"
    NUMBER = "number"
    """A disc with the value of the column `number`."""


class Line(StrEnum):
    """Line that joins points."""

    STEPS = "steps"
    """Right, then up or down: what is attainable within a budget, or what holds until it changes."""
    STRAIGHT = "straight"


class Form(StrEnum):
    """Format of a number in a tooltip."""

    TEXT = "text"
    COUNT = "count"
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    JOULES = "joules"
    KILOJOULES = "kilojoules"
    MEGAJOULES = "megajoules"
    WATTS = "watts"
    KILOWATTS = "kilowatts"
    CELSIUS = "celsius"
    PERCENT = "percent"
    LESS_OR_MORE = "lessOrMore"
    """A reduction in words: 12.0 % less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Colour of `PALETTE`, and shape of points if they are marked."""

    color: str
    shape: Shape | None = None


UNKNOWN = Style(color="gray", shape=Shape.RING)
METHOD_STYLES = {
    "sequential": Style(color="gray", shape=Shape.DIAMOND),
    "sequential+perseus": Style(color="orange", shape=Shape.SQUARE),
    "nanobatching": Style(color="purple", shape=Shape.WEDGE),
    "nanobatching+perseus": Style(color="green", shape=Shape.TRIANGLE),
    "kareus": Style(color="blue", shape=Shape.CIRCLE),
    "kareus-without-frequency": Style(color="vermilion", shape=Shape.CROSS),
    "kareus-without-kernel-schedule": Style(color="olive", shape=Shape.PLUS),
}


def method_style(method: str) -> Style:
    """Style of a method, the same in every figure."""
    return METHOD_STYLES.get(method, UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a panel."""

    column: str
    label: str
    """Label with its unit."""
    scale: float = 1.0
    """Units of the label in one unit of the column."""
    from_zero: bool = False
    """Whether it begins at 0, for what is compared as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """One line about a point that is pointed at."""

    name: str
    column: str
    form: Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that look alike, by rising x if they are joined."""

    name: str
    points: pl.DataFrame
    style: Style
    line: Line | None = None
    faint: bool = False
    tips: tuple[Tip, ...] = ()
    """None for points that only lead a line."""
    title: str | None = None
    """Column that names a point; the name of the series if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    title: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure of one or more panels."""

    name: str
    title: str
    table: str
    """Table among the downloads that holds its numbers."""
    panels: tuple[Panel, ...]
    empty: str = "Nothing to show."
    """Said in place of panels if there are none."""

    @property
    def file(self) -> str:
        """Path of its files from the page, without suffix; likewise of other figures."""
        return f"figures/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPart:
    """A part of a bar."""

    name: str
    style: Style
    count: int
    tips: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A whole that has parts."""

    name: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A figure of bars, each as long as the others, by the shares of its parts."""

    name: str
    title: str
    table: str
    bars: tuple[Bar, ...]
    empty: str = "Nothing to show."

    @property
    def file(self) -> str:
        """Path of its files from the page, without suffix."""
        return f"figures/{self.name}"


def plot_data(plot: Plot) -> dict[str, Any]:
    """A plot as plain data; points go over column by column, which keeps the page small."""
    return {
        "file": plot.file,
        "title": plot.title,
        "table": plot.table,
        "empty": plot.empty,
        "panels": [
            {
                "title": panel.title,
                "note": panel.note,
                "x": to_plain(panel.x),
                "y": to_plain(panel.y),
                "series": [_series(panel, series) for series in panel.series],
            }
            for panel in plot.panels
        ],
    }


def _series(panel: Panel, series: Series) -> dict[str, Any]:
    columns = dict.fromkeys((panel.x.column, panel.y.column, *(tip.column for tip in series.tips)))
    if series.title:
        columns[series.title] = None
    if series.style.shape is Shape.NUMBER:
        columns["number"] = None
    return {
        "name": series.name,
        "color": series.style.color,
        "shape": series.style.shape,
        "line": series.line,
        "faint": series.faint,
        "title": series.title,
        "tips": [[tip.name, tip.column, tip.form] for tip in series.tips],
        "points": series.points.select(list(columns)).to_dict(as_series=False),
    }
