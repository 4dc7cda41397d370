"""Parts that all figures share: the record of a figure, and pieces of Vega-Altair charts.

A figure is defined once. The page shows it, with the data of the page; `drawing.py` writes it to files. Charts name
their data instead of holding them, so that both give the same numbers and the page can exchange them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import polars as pl

from kareus.artifacts.records import to_plain
from kareus.report.theme import METHODS, UNKNOWN, Look

DIGITS = 7
"""Significant digits of numbers in figures; the tables beside them have all."""
WHEEL = "wheel![event.altKey || event.ctrlKey || event.metaKey]"
"""What zooms: a wheel alone scrolls the page."""
FIGURES = "figures"
"""Folder of the files of figures, below that of their page."""
PANEL_PX = (330, 230)
"""Width and height of one of several panels in files; the page has its own widths."""
Tip = tuple[str, str, str]
"""Column, name with its unit, and format of a line of a tooltip; an empty format is that of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure: a chart of named data."""

    name: str
    title: str
    table: str
    """Table among the downloads that holds its numbers; empty for a figure of a page without files."""
    spec: Mapping[str, Any]
    """Vega-Lite specification, as `spec_of` makes it: without data and theme."""
    data: Mapping[str, pl.DataFrame]
    """Data by the names that the chart gives them; the first is the table behind the figure."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Names of the columns of the table behind the figure, in order; none shows no table."""
    zooms: Mapping[str, str] = field(default_factory=dict)
    """Columns on the axes that zoom, by axis (`x`, `y`)."""
    note: str = ""
    empty: str = ""
    """What to say in place of a figure that has nothing to show."""
    folder: str = FIGURES

    @property
    def filters(self) -> bool:
        """Whether clicks on the entries of its legend show and hide marks."""
        return "'shown'" in str(self.spec.get("params"))

    @property
    def file(self) -> str:
        """Path of its files from the page, without suffix."""
        return f"{self.folder}/{self.name}"


def chart_of(data: str | None, name: str) -> alt.Chart:
    """Return a chart of named data, or of its panel's; names of views must not depend on what was drawn before."""
    return alt.Chart(alt.Undefined if data is None else alt.NamedData(name=data), name=name)


def spec_of(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the specification of a chart, not checked: that takes as long as drawing it, and the tests do it.

    Channels of charts are objects (`alt.X("time_s:Q")`): making one of plain text takes Altair milliseconds.
    """
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec.pop("config", None)  # Altair's own; pages and files have a theme
    return spec


def facet_of(data: str, column: str, panels: Sequence[str], *layers: alt.Chart) -> alt.FacetChart:
    """Return a panel for each value of a column of named data, at most two in a row.

    The layers name no data of their own.
    """
    return (
        alt.layer(*layers)
        .properties(width=PANEL_PX[0], height=PANEL_PX[1])
        .facet(
            alt.Facet(f"{column}:N", title=None, sort=list(panels)),
            columns=min(2, len(panels)),
            data=alt.NamedData(name=data),
        )
        .resolve_scale(x="independent", y="independent")
    )


def drawn(value: float) -> float:
    """Return a number as figures have it, rounded to `DIGITS`."""
    return float(f"{value:.{DIGITS}g}")


def columns_of(frame: pl.DataFrame) -> dict[str, list[Any]]:
    """Return a table as plain columns, numbers rounded to `DIGITS`."""
    return {
        column.name: [None if v is None else drawn(v) for v in column]
        if column.dtype.is_float()
        else to_plain(column.to_list())
        for column in frame
    }


def looks(field_name: str, given: Mapping[str, Look], *, title: str | None = None) -> dict[str, Any]:
    """Return the encodings `color` and `shape` of a column whose values look as `given`, with one legend for both."""
    names = list(given)
    colors, shapes = [look.color for look in given.values()], [look.shape for look in given.values()]
    legend = alt.Legend(title=title, orient="bottom", columns=4)
    return {
        "color": alt.Color(f"{field_name}:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        "shape": alt.Shape(f"{field_name}:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
    }


def looks_of(methods: Sequence[str]) -> dict[str, Look]:
    """Return the looks of methods, in the order of the palette."""
    listed = {method: look for method, look in METHODS.items() if method in methods}
    return listed | {method: UNKNOWN for method in methods if method not in listed}


def legend_filter(field_name: str, shown: Sequence[str]) -> alt.Parameter:
    """Return the selection `shown`: a click on an entry of the legend shows or hides its marks."""
    return alt.selection_point(
        name="shown",
        fields=[field_name],
        bind="legend",
        toggle="true",
        empty=False,
        value=[{field_name: name} for name in shown],
    )


def zoom(*axes: str) -> alt.Parameter:
    """Return the selection `zoom` of these axes: drag to move, wheel and Ctrl to zoom, double-click to end."""
    return alt.selection_interval(name="zoom", bind="scales", encodings=list(axes), zoom=WHEEL)


def zoom_of(views: Sequence[str], *axes: str) -> alt.TopLevelSelectionParameter:
    """Return the selection `zoom` of several views that share their axes."""
    select = alt.IntervalSelectionConfig(type="interval", encodings=list(axes), zoom=WHEEL)
    return alt.TopLevelSelectionParameter(name="zoom", select=select, bind="scales", views=list(views))


def tooltip(tips: Sequence[Tip]) -> list[alt.Tooltip]:
    """Return the tooltip of a mark."""
    return [
        alt.Tooltip(name, type="quantitative", title=title, format=form)
        if form
        else alt.Tooltip(name, type="nominal", title=title)
        for name, title, form in tips
    ]
