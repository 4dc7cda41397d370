"""The page: one HTML file that holds its styles, scripts and data, and asks the network for nothing."""

import html
import json
from importlib import resources
from string import Template

from kareus.report.charts import PALETTE
from kareus.report.sections import Page, page_data, testbeds_label

SCRIPTS = (
    "data.js",
    "svg.js",
    "interact.js",
    "layout.js",
    "plot.js",
    "shares.js",
    "timeline.js",
    "sheet.js",
    "sections.js",
)
"""Scripts in the order in which they are joined: each uses only those before it."""


def page_html(page: Page, summary: str) -> str:
    """Return a page as text.

    Args:
        page: what it shows.
        summary: its content, as text.
    """
    return Template(_asset("page.html")).substitute(
        title=html.escape(f"{page.title} ({testbeds_label(page.testbeds)})"),
        style=f"{_colours()}\n{_asset('page.css')}",
        summary=html.escape(summary),
        data=_embedded(page_data(page)),
        script="\n".join(_asset(name) for name in SCRIPTS),
    )


def _colours() -> str:
    """Colours of figures as variables, as the reader's scheme wants them; paper is always light."""
    light, dark = (
        ":root {" + "".join(f" --{name}: {both[i]};" for name, both in PALETTE.items()) + " }" for i in range(2)
    )
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{ {dark} }}"


def _embedded(value: object) -> str:
    """JSON for a script element: without `<`, no name in it can end the element or open a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (resources.files("kareus.report") / "static" / name).read_text(encoding="utf-8")
