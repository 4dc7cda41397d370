"""Figures for papers: files in SVG and PDF, drawn by matplotlib from the same definitions as those of the page.

Every file names its content and testbed in the drawing and in its metadata; equal inputs give equal files.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kareus
from kareus.artifacts.files import write_atomically
from kareus.report.charts import PALETTE, Line, Panel, Plot, Series, Shape, Shares, Style
from kareus.report.paper import FONT_PT, add_legend, entitle, place
from kareus.report.workload.print_timeline import draw_timeline
from kareus.report.workload.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, ALONE_IN = (3.5, 2.4), (4.9, 2.9)
"""Width and height of one of several panels, as wide as a paper's column, and of a single panel."""
BAR_IN = 0.34
"""Height of a bar with its name."""
SETTINGS: dict[str, Any] = {
    "font.size": FONT_PT,
    "axes.titlesize": FONT_PT,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.06,
    "axes.ymargin": 0.06,
    "grid.color": "#e6e9ed",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.2,
    "lines.markeredgewidth": 0.8,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: searchable, and restyled where the file is included
    "svg.hashsalt": "kareus",
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "text.parse_math": False,  # names may hold a dollar sign
    "text.usetex": False,
}
INSIDE: dict[str, Any] = {"color": "white", "ha": "center", "va": "center_baseline"}
"""Alignment of text within a mark."""
MARKERS = {
    Shape.CIRCLE: "o",
    Shape.SQUARE: "s",
    Shape.TRIANGLE: "^",
    Shape.DIAMOND: "D",
    Shape.WEDGE: "v",
    Shape.CROSS: "x",
    Shape.PLUS: "+",
    Shape.RING: "o",
    Shape.NUMBER: "o",
}


def save(figure: Plot | Shares | Timeline, subject: str, folder: Path) -> None:
    """Draw a figure, as SVG and as PDF.

    Args:
        figure: what to draw.
        subject: workload and testbed, printed on the figure.
        folder: folder of the page, where the files are written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only this command draws
    from matplotlib.backends.backend_pdf import FigureCanvasPdf  # noqa: PLC0415
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every table of every font
    said = {"Title": f"{figure.title} ({subject})", "Creator": f"kareus {kareus.__version__}"}
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # A title may have letters that the font lacks: the SVG keeps them as text, the PDF shows a box.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font", category=UserWarning)
        canvas = Canvas()
        draw(figure, canvas)
        entitle(canvas, f"{figure.title}\n{subject}")
        # The canvases themselves, not `savefig`, which draws everything once more on trial.
        svg = said | {"Date": None, "Description": subject}
        write_atomically(folder / f"{figure.file}.svg", lambda p: FigureCanvasSVG(canvas).print_svg(p, metadata=svg))
        pdf = said | {"CreationDate": None, "Subject": subject}
        write_atomically(folder / f"{figure.file}.pdf", lambda p: FigureCanvasPdf(canvas).print_pdf(p, metadata=pdf))


def remove_others(folder: Path, figures: Sequence[Path]) -> None:
    """Remove figures from a folder that are not among `figures` (paths without suffix): those of an earlier report."""
    for path in folder.iterdir():
        if path.suffix in (".svg", ".pdf") and path.with_suffix("") not in figures:
            path.unlink()


def draw(figure: Plot | Shares | Timeline, canvas: "Figure") -> None:
    """Draw a figure on an empty canvas, and size it."""
    match figure:
        case Timeline():
            draw_timeline(figure, canvas)
        case Shares():
            _draw_shares(figure, canvas)
        case Plot():
            _draw_plot(figure, canvas)


def _draw_plot(plot: Plot, canvas: "Figure") -> None:
    if not plot.panels:
        _say(plot.empty, canvas)
        return
    names = {series.name for panel in plot.panels for series in panel.series if len(series.points)}
    cell_in = ALONE_IN if len(plot.panels) == 1 else PANEL_IN
    grid = place(canvas, cell_in, names, count=len(plot.panels))
    for axes, panel in zip(grid, plot.panels, strict=True):
        _draw_panel(axes, panel)
    add_legend(canvas, grid)


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x.label, ylabel=panel.y.label)
    for series in panel.series:
        if series.points.is_empty():
            continue
        xs = (series.points[panel.x.column] * panel.x.scale).to_numpy()
        ys = (series.points[panel.y.column] * panel.y.scale).to_numpy()
        axes.plot(xs, ys, label=series.name, **_look(series))
        if series.style.shape is Shape.NUMBER:
            for x, y, number in zip(xs, ys, series.points["number"], strict=True):
                axes.annotate(number, (x, y), fontsize=6, **INSIDE)
    if panel.x.from_zero:
        axes.set_xlim(left=0)
    if panel.y.from_zero:
        axes.set_ylim(bottom=0)


def _look(series: Series) -> dict[str, Any]:
    return {
        "color": PALETTE[series.style.color][0],
        "linestyle": "none" if series.line is None else "-",
        "drawstyle": "steps-post" if series.line is Line.STEPS else "default",
        "alpha": 0.55 if series.faint else 1.0,
        **_mark(series.style),
    }


def _mark(style: Style) -> dict[str, Any]:
    if style.shape is None:
        return {"marker": "none"}
    look: dict[str, Any] = {"marker": MARKERS[style.shape]}
    if style.shape is Shape.RING:
        look["markerfacecolor"] = "none"
    if style.shape is Shape.NUMBER:
        look |= {"markersize": 8, "markeredgecolor": "white", "zorder": 3}
    return look


def _draw_shares(shares: Shares, canvas: "Figure") -> None:
    if not shares.bars:
        _say(shares.empty, canvas)
        return
    names = {part.name for bar in shares.bars for part in bar.parts}
    (axes,) = place(canvas, (ALONE_IN[0], BAR_IN * len(shares.bars) + 0.6), names, left_in=0.1)
    for row, bar in enumerate(shares.bars):
        left, total = 0.0, sum(part.count for part in bar.parts)
        axes.annotate(bar.name, (0, row - 0.32), fontsize=6, va="bottom")
        for part in bar.parts:
            percent = 100 * part.count / total
            axes.barh(row, percent, 0.5, left, color=PALETTE[part.style.color][0], edgecolor="white", label=part.name)
            if percent > 6:  # noqa: PLR2004 - else it would not fit
                axes.annotate(f"{percent:.0f} %", (left + percent / 2, row), **INSIDE)
            left += percent
    axes.set(xlim=(0, 100), ylim=(len(shares.bars) - 0.5, -0.8), yticks=[], xlabel="share of the frontier (%)")
    axes.grid(visible=False)
    add_legend(canvas, [axes])


def _say(text: str, canvas: "Figure") -> None:
    (axes,) = place(canvas, (ALONE_IN[0], 1.0))
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center")
