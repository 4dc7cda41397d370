"""What a browser takes for the text, the tables and the data of a page, without running its scripts."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from altair.vegalite.v6.schema.core import TopLevelSpec


@dataclass
class Table:
    """A table as a reader sees it."""

    section: str = ""
    """Title of the section that it is in."""
    caption: str = ""
    names: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    links: list[str | None] = field(default_factory=list)
    ours: list[bool] = field(default_factory=list)
    """Whether each row is emphasised."""


class Blocks(HTMLParser):
    """A page in parts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}
        self.tables: list[Table] = []
        self.titles: list[str] = []
        self._stack: list[str] = []
        self._id = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        self.attributes += attrs
        self._stack.append(tag)
        self._id = known.get("id") or tag
        if tag == "table":
            self.tables.append(Table(section=self.titles[-1] if self.titles else ""))
        elif tag == "tr" and self._in("thead"):
            self.tables[-1].names = []  # of the last row of heads
        elif tag == "tr":
            self.tables[-1].rows.append([])
            self.tables[-1].links.append(None)
            self.tables[-1].ours.append("ours" in (known.get("class") or ""))
        elif tag in ("th", "td"):
            (self.tables[-1].names if self._in("thead") else self.tables[-1].rows[-1]).append("")
        elif tag == "a" and self._in("tbody"):
            self.tables[-1].links[-1] = known.get("href")
        elif tag == "h2":
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        while tag in self._stack and self._stack.pop() != tag:
            pass
        self._id = self._stack[-1] if self._stack else ""

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._id, []).append(data)
        if self._in("h2"):
            self.titles[-1] += data
        if not self._in("table"):
            return
        table = self.tables[-1]
        if self._in("caption"):
            table.caption += data
        elif self._in("th") or self._in("td"):
            cells = table.names if self._in("thead") else table.rows[-1]
            cells[-1] += data if data.strip() else ""  # text beside code keeps its spaces

    def _in(self, tag: str) -> bool:
        return tag in self._stack

    @property
    def data(self) -> dict[str, Any]:
        """The data of its scripts."""
        return json.loads("".join(self.texts["data"]))

    def table(self, start: str) -> Table:
        """The one table whose caption starts so."""
        (found,) = (table for table in self.tables if table.caption.strip().startswith(start))
        return found

    def links(self, *kinds: str) -> set[str]:
        """Places that links lead to, of these kinds of files."""
        return {v for name, v in self.attributes if name == "href" and v and v.rpartition(".")[2] in kinds}


def check_specifications(page: str) -> None:
    """Check the figures of a page against Vega-Lite's schema.

    Raises:
        jsonschema.ValidationError: one has what Vega-Lite does not know.
    """
    figures = Blocks(page).data["figures"]
    assert figures
    for figure in figures.values():
        TopLevelSpec.validate(figure["spec"])
