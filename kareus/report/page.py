"""The page: one HTML file that holds its styles, scripts and data, and asks the network for nothing."""

import html
import json
from importlib import resources
from string import Template

from kareus.report.figures import page_data
from kareus.report.inputs import ReportInputs
from kareus.report.summary import summary_text

SCRIPTS = ("data.js", "svg.js", "interact.js", "frontiers.js", "search.js", "effort.js", "timeline.js", "page.js")
"""In the order in which they are joined: each uses only what stands before it."""


def page_html(inputs: ReportInputs) -> str:
    """Return the page as text."""
    return Template(_asset("page.html")).substitute(
        title=html.escape(f"{inputs.workload} ({inputs.testbed.label})"),
        style=_asset("page.css"),
        summary=html.escape(summary_text(inputs)),
        data=_embedded(page_data(inputs)),
        script="\n".join(_asset(name) for name in SCRIPTS),
    )


def _embedded(value: object) -> str:
    """JSON for a script element: without `<`, no name in it can end the element or open a comment."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (resources.files("kareus.report") / "static" / name).read_text(encoding="utf-8")
