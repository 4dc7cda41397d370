"""Pages as records: what a page is about, its sections of tables and figures, and its downloads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import TableSchema
from kareus.report.charts import Figure
from kareus.report.sheets import Sheet

Tables = Sequence[tuple[TableSchema, pl.DataFrame]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a page."""

    title: str
    text: str = ""
    commands: tuple[str, ...] = ()
    """Commands to type next."""
    sheets: tuple[Sheet, ...] = ()
    figures: tuple[str, ...] = ()
    """Names of figures of the page."""
    is_folded: bool = False
    """Whether a reader unfolds it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: what it is about, and what it shows."""

    title: str
    name: str
    """Name of its folder or campaign."""
    testbeds: tuple[TestbedIdentity, ...]
    provenance: Provenance
    sections: tuple[Section, ...]
    figures: tuple[Figure, ...]
    tables: Tables
    """Those that may be downloaded."""
    summary: str
    """The page's numbers as text."""
    template: str = "page.html"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the template shows besides."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further plain data for the script."""

    @property
    def is_simulated(self) -> bool:
        """Whether all testbeds are simulated."""
        return {testbed.kind for testbed in self.testbeds} == {"simulated"}


def testbeds_label(testbeds: Sequence[TestbedIdentity]) -> str:
    """Return the label of one or several testbeds in figures and headers."""
    return "; ".join(testbed.label for testbed in testbeds)
