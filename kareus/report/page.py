"""The page: one HTML file that holds its styles, scripts and data, and asks the network for nothing."""

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from kareus.report.charts import PALETTE
from kareus.report.figures import Figure, page_data
from kareus.report.inputs import ReportInputs
from kareus.report.summary import summary_text

SHARED = ("data.js", "svg.js", "interact.js", "layout.js", "plot.js")
"""Scripts of every page, in the order in which they are joined: each uses only what stands before it."""
SCRIPTS = (*SHARED, "shares.js", "timeline.js", "page.js")
CAMPAIGN_SCRIPTS = (*SHARED, "shares.js", "sheet.js", "campaign.js")
FLEET_SCRIPTS = (*SHARED, "fleets.js")


def page_html(inputs: ReportInputs, drawn: Sequence[Figure]) -> str:
    """Return the page of a workload as text; `drawn` are its figures."""
    title = f"{inputs.workload} ({inputs.testbed.label})"
    return html_page(title, summary_text(inputs), page_data(inputs, drawn), SCRIPTS)


def html_page(title: str, summary: str, data: Mapping[str, Any], scripts: Sequence[str]) -> str:
    """Return a page as text.

    Args:
        title: of the document.
        summary: what the page says, as text.
        data: what its figures draw.
        scripts: assets that draw them.
    """
    return Template(_asset("page.html")).substitute(
        title=html.escape(title),
        style=f"{_colours()}\n{_asset('page.css')}",
        summary=html.escape(summary),
        data=_embedded(data),
        script="\n".join(_asset(name) for name in scripts),
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
