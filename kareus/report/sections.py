"""Pages as data: sections of tables and figures, which `static/sections.js` puts together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import to_plain
from kareus.artifacts.tables import TableSchema
from kareus.report.charts import Plot, Shares, plot_data
from kareus.report.sheets import Sheet, sheet_data
from kareus.report.workload.timeline import Timeline, timeline_data

TIMELINES = "timelines"
"""Among the figures of a section: the timelines, one of which is shown."""

Figure = Plot | Shares | Timeline
Tables = Sequence[tuple[TableSchema, pl.DataFrame]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a page."""

    title: str
    text: str = ""
    sheets: tuple[Sheet, ...] = ()
    figures: tuple[str, ...] = ()
    """Names of figures, or `TIMELINES`."""
    is_folded: bool = False
    """Whether a reader unfolds it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: what it is about, and what it shows."""

    title: str
    scale: str
    """Size of the subject, such as `16 GPUs`; may be empty."""
    testbeds: tuple[TestbedIdentity, ...]
    provenance: Provenance
    sections: tuple[Section, ...]
    figures: tuple[Figure, ...]
    tables: Tables
    """Those that may be downloaded."""
    tiles: tuple[tuple[float | None, str], ...] = ()
    """Reductions in percent, and of what."""
    facts: Mapping[str, float] | None = None
    """Further data of the script."""


def testbeds_label(testbeds: Sequence[TestbedIdentity]) -> str:
    """Return the label of one or several testbeds in figures and headers."""
    return "; ".join(testbed.label for testbed in testbeds)


def page_data(page: Page) -> dict[str, Any]:
    """A page as plain data."""
    kinds = {testbed.kind for testbed in page.testbeds}
    return {
        "title": page.title,
        "scale": page.scale,
        "testbed": {
            "kind": kinds.pop() if len(kinds) == 1 else "mixed",
            "label": testbeds_label(page.testbeds),
            "detail": "; ".join(dict.fromkeys(testbed.detail for testbed in page.testbeds)),
        },
        "provenance": to_plain(page.provenance),
        "tiles": [{"value": value, "text": text} for value, text in page.tiles],
        "sections": [
            {
                "title": section.title,
                "text": section.text,
                "sheets": [sheet_data(sheet) for sheet in section.sheets],
                "figures": list(section.figures),
                "folded": section.is_folded,
            }
            for section in page.sections
        ],
        "plots": {figure.name: plot_data(figure) for figure in page.figures if isinstance(figure, Plot)},
        "shares": {
            figure.name: to_plain(figure) | {"file": figure.file}
            for figure in page.figures
            if isinstance(figure, Shares)
        },
        TIMELINES: [timeline_data(figure) for figure in page.figures if isinstance(figure, Timeline)],
        "tables": [
            {"name": schema.name, "meaning": schema.meaning, "rows": len(frame)} for schema, frame in page.tables
        ],
        **(page.facts or {}),
    }
