"""Pages: their records, one HTML file each that holds its styles, scripts (Vega) and data, and the folder of a report.

A page asks the network for nothing, and its content security policy allows nothing of the kind.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from kareus.artifacts.cache import keep, kept
from kareus.artifacts.files import write_text
from kareus.artifacts.manifest import fill_listed, write_manifest
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.tables import TableSchema
from kareus.report.charts import Figure, columns_of
from kareus.report.contents import DRAWN_AS, SUMMARY
from kareus.report.downloads import write_downloads
from kareus.report.drawing import save
from kareus.report.sheets import Sheet, sheet_groups
from kareus.report.theme import theme

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
    subject: str = ""
    """What files of its figures say that they are of; its name where that is empty."""
    testbeds: tuple[TestbedIdentity, ...]
    source: str = ""
    """What its figures are, where nothing was measured on the testbeds; else empty."""
    provenance: Provenance
    sections: tuple[Section, ...]
    figures: tuple[Figure, ...]
    files: tuple[Figure, ...] = ()
    """Figures that are files beside it alone: the script puts them in the place of one that is shown."""
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

    @property
    def label(self) -> str:
        """Label of its source, or of its testbeds, in figures and headers."""
        return self.source or testbeds_label(self.testbeds)


def testbeds_label(testbeds: Sequence[TestbedIdentity]) -> str:
    """Return the label of one or several testbeds."""
    return "; ".join(testbed.label for testbed in testbeds)


def write_page(
    folder: Path,
    page: Page,
    name: str = "page.html",
    *,
    summary: str = SUMMARY,
    manifest: str = "manifest.json",
    beside: Callable[[Path], object] = lambda _: None,
) -> Path:
    """Write a page with all that it links to: figures, downloads, its text, and a manifest of these.

    An interrupted one leaves the folder as it was.

    Args:
        folder: of the report, which may hold those of several pages.
        page: what is written.
        name: of the page.
        summary: name of its text.
        manifest: name of the manifest.
        beside: writes further files and folders that belong to the report into a folder.

    Returns:
        The path of the page.
    """

    def fill(filled: Path) -> None:
        beside(filled)
        for schema, frame in page.tables:
            write_downloads(filled / "data", frame, schema, page.provenance)
        for figure in (*page.figures, *page.files):
            if figure.table:
                save(figure, f"{page.subject or page.name}, {page.label}", filled)
        write_text(filled / name, page_html(page))
        write_text(filled / summary, page.summary)
        write_manifest(filled / manifest, [filled])

    fill_listed(folder, manifest, fill)
    return folder / name


def page_html(page: Page) -> str:
    """Return a page as text."""
    environment = Environment(
        loader=PackageLoader("kareus.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"groups": sheet_groups, "kinds": DRAWN_AS}
    return environment.get_template(page.template).render(
        page=page,
        figures={figure.name: figure for figure in page.figures},
        label=page.label,
        details="; ".join(dict.fromkeys(testbed.detail for testbed in page.testbeds)),
        style=_static("page.css"),
        vega=vega_scripts(),
        script=_static("page.js"),
        data=_embedded(_data(page)),
        **page.extra,
    )


def _data(page: Page) -> dict[str, Any]:
    return {
        "themes": {scheme: theme(scheme) for scheme in ("light", "dark")},
        "figures": {figure.name: _figure(figure) for figure in page.figures if not figure.empty},
        **page.data,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    data = {name: columns_of(frame) for name, frame in figure.data.items()}
    return {
        "title": figure.title,
        "spec": dict(figure.spec),
        "data": data,
        "heads": dict(figure.heads),
        "zooms": dict(figure.zooms),
    }


def _embedded(value: object) -> str:
    """JSON for a script element: without `<`, no name in it can end the element or open a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _static(name: str) -> str:
    return (resources.files("kareus.report") / "static" / name).read_text(encoding="utf-8")


_KIND = "vega"


@cache
def vega_scripts() -> str:
    """Return Vega, Vega-Lite and Vega-Embed in one file, from vl-convert; they ask the network for nothing.

    Bundling takes two seconds, so the scripts are kept in the folder of caches (`kareus.artifacts.cache`).
    """
    key = f"vl-convert-{metadata.version('vl-convert-python')}"
    scripts = (kept(_KIND, key) or {}).get("scripts")
    if isinstance(scripts, str) and "</script" not in scripts.lower():  # it would end the element that holds them
        return scripts
    bundled = _bundled()
    keep(_KIND, key, {"scripts": bundled})
    return bundled


def _bundled() -> str:
    import vl_convert  # noqa: PLC0415 - only where nothing is kept

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub lacks the default
