"""Figures as files: SVG, PDF and PNG of the same definitions that the page shows, converted by vl-convert.

Every file names its content and its testbed; equal inputs give equal files. vl-convert starts once in a process, which
takes most of a second.
"""

import copy
import re
from html import escape
from pathlib import Path
from typing import Any

from kareus.artifacts.files import write_atomically, write_text
from kareus.report.charts import Figure, columns_of
from kareus.report.theme import PAPER, theme

PNG_SCALE = 2
RESOURCES = re.compile(rb"(?:^ +/[A-Za-z]+\d+ \d+ 0 R\n)+", re.MULTILINE)
"""Lines of a dictionary that names the objects of a page."""
EMPTY = {"data": {"values": [{}]}, "mark": {"type": "text"}, "width": 480, "height": 40}


def save(figure: Figure, subject: str, folder: Path) -> None:
    """Write a figure as SVG, PDF and PNG.

    Args:
        figure: what to draw.
        subject: workload and testbed, printed on the figure.
        folder: folder of the page, below which the files are written.
    """
    import vl_convert  # noqa: PLC0415 - only commands that draw need it

    svg = svg_of(figure, subject)
    write_text(folder / f"{figure.file}.svg", described(svg, figure, subject))
    pdf, png = _sorted_resources(vl_convert.svg_to_pdf(svg)), vl_convert.svg_to_png(svg, scale=PNG_SCALE)
    write_atomically(folder / f"{figure.file}.pdf", lambda path: path.write_bytes(pdf))
    write_atomically(folder / f"{figure.file}.png", lambda path: path.write_bytes(png))


def svg_of(figure: Figure, subject: str) -> str:
    """Return a figure as SVG, on light paper."""
    import vl_convert  # noqa: PLC0415 - as in `save`

    config = theme("light", "normal") | {"background": PAPER["light"]}
    svg: str = vl_convert.vegalite_to_svg(_complete(figure, subject), config=config)
    return svg


def described(svg: str, figure: Figure, subject: str) -> str:
    """Return an SVG with the figure's title and subject as its own title, which programs that read aloud speak."""
    return svg.replace(">", f"><title>{escape(f'{figure.title} ({subject})')}</title>", 1)


def _sorted_resources(pdf: bytes) -> bytes:
    """Return a PDF with the names in its dictionaries of resources in order; vl-convert hashes them anew in every run.

    The lines move within their objects, so that all offsets hold.
    """
    return RESOURCES.sub(lambda run: b"".join(sorted(run[0].splitlines(keepends=True))), pdf)


def _complete(figure: Figure, subject: str) -> dict[str, Any]:
    """Return the specification with data, and a title above what the chart itself says."""
    title = {"text": figure.title, "subtitle": subject}
    if figure.empty:
        return EMPTY | {"encoding": {"text": {"value": figure.empty}}, "title": title}
    spec = copy.deepcopy(dict(figure.spec))
    spec["datasets"] = {name: _rows(columns_of(frame)) for name, frame in figure.data.items()}
    return spec | {"title": title, "padding": 10}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
