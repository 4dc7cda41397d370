"""Pages: one HTML file each, rendered from a template, that holds its styles, scripts (Vega) and data.

It asks the network for nothing, and its content security policy allows nothing of the kind.
"""

import json
from functools import cache
from importlib import metadata, resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from kareus.artifacts.cache import keep, kept
from kareus.report.charts import Figure, columns_of
from kareus.report.contents import DRAWN_AS
from kareus.report.sections import Page, testbeds_label
from kareus.report.sheets import sheet_groups
from kareus.report.theme import theme


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
        label=testbeds_label(page.testbeds),
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
