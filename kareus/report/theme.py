"""Colours and shapes of figures, and the Vega-Lite configurations for light and dark paper.

One palette serves both: each colour has a contrast of 3:1 and more with white and with the dark page (WCAG 2.2,
1.4.11). Methods differ in shape besides, for the colour-blind.
"""

from dataclasses import dataclass
from typing import Any

PAPER = {"light": "#ffffff", "dark": "#14171b"}
"""Background of a page by its scheme; page.css has the same."""
PALETTE = {
    "gray": "#7f8791",
    "orange": "#cf7300",
    "purple": "#b0579b",
    "green": "#0f9168",
    "blue": "#1f78d1",
    "vermilion": "#dd4f2b",
    "olive": "#8c7d1c",
}
CLOCK_RAMP = ("#3a4f8f", "#2f7f9a", "#35a583", "#8cc152", "#e8d33f")
"""Low to high clocks; lightness rises along it, so that it reads without its hues."""
_INKS = {
    "light": {"ink": "#16191d", "quiet": "#565d67", "rule": "#c4c9d0", "grid": "#e6e9ed", "wait": "#e9ecf0"},
    "dark": {"ink": "#eceef1", "quiet": "#a4acb8", "rule": "#4a525d", "grid": "#2a3038", "wait": "#272c33"},
}


@dataclass(frozen=True, slots=True)
class Look:
    """Colour and shape of one of several kinds of marks."""

    color: str
    shape: str = "circle"


METHODS = {
    "sequential": Look(PALETTE["gray"], "diamond"),
    "sequential+perseus": Look(PALETTE["orange"], "square"),
    "nanobatching": Look(PALETTE["purple"], "triangle-down"),
    "nanobatching+perseus": Look(PALETTE["green"], "triangle-up"),
    "kareus": Look(PALETTE["blue"], "circle"),
    "kareus-without-frequency": Look(PALETTE["vermilion"], "cross"),
    "kareus-without-kernel-schedule": Look(PALETTE["olive"], "triangle-right"),
}
"""Look of every method, the same in all figures."""
ABLATIONS = tuple(method for method in METHODS if method.startswith("kareus-"))
UNKNOWN = Look(PALETTE["gray"], "stroke")


def theme(scheme: str, weight: str = "bold") -> dict[str, Any]:
    """Return the Vega-Lite configuration for `light` or `dark` paper; only what is not data takes its colours.

    Args:
        scheme: `light` or `dark`.
        weight: of titles and names. PDF files are the same in every run only if they have one font.
    """
    inks = _INKS[scheme]
    text = {
        "labelColor": inks["quiet"],
        "titleColor": inks["ink"],
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    lines = {"gridColor": inks["grid"], "domainColor": inks["rule"], "tickColor": inks["rule"]}
    heading = {"color": inks["ink"], "subtitleColor": inks["quiet"], "fontSize": 13, "subtitleFontSize": 11}
    return {
        "background": None,
        "font": "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif",
        "view": {"stroke": None},
        "axis": text | lines | {"titlePadding": 8, "labelSeparation": 6},
        "axisX": {"labelFlush": False},  # a label that is moved from its tick reads as that of another place
        "legend": text | {"columnPadding": 26, "symbolSize": 70, "labelLimit": 320, "unselectedOpacity": 0.5},
        "header": {"labelFontSize": 12, "labelFontWeight": weight, "labelLimit": 420, "labelColor": inks["ink"]},
        "title": heading | {"anchor": "start", "fontWeight": weight},
        "text": {"color": inks["ink"], "fontSize": 12},
        "style": {
            "ink": {"color": inks["ink"], "stroke": PAPER[scheme]},
            "ink-line": {"color": inks["ink"]},
            "name": {"fontSize": 12, "fontWeight": weight},
            "paper": {"stroke": PAPER[scheme], "strokeWidth": 5, "strokeJoin": "round"},
            "number": {"color": PAPER[scheme], "fontSize": 11, "fontWeight": weight},
            "waiting": {"color": inks["wait"]},
            "bar": {"stroke": PAPER[scheme]},
        },
    }
