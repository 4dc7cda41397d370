"""Places on a figure for papers, in inches; a layout engine would take as long as the drawing itself."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT_PT = 7.0
HEAD_IN, LEGEND_LINE_IN = 0.36, 0.15
"""Heights of the two lines of a figure's title, and of a line of its legend."""
LEFT_IN, RIGHT_IN, ABOVE_IN, BELOW_IN = 0.56, 0.1, 0.2, 0.42
"""Around a pair of axes, for its labels."""
LEGEND_ENTRY_IN = 1.75


def place(
    canvas: "Figure",
    cell_in: tuple[float, float],
    names: Iterable[str] = (),
    *,
    count: int = 1,
    left_in: float = LEFT_IN,
) -> list["Axes"]:
    """Size a figure and put axes on it, row by row, two in a row if there are several.

    Args:
        canvas: an empty figure.
        cell_in: width and height of each pair of axes with its labels.
        names: what the legend will hold.
        count: pairs of axes.
        left_in: space for the labels of a vertical axis.
    """
    across = min(count, 2)
    down = math.ceil(count / across)
    width, foot = across * cell_in[0], LEGEND_LINE_IN * _legend_lines(len(list(names)), across * cell_in[0])
    height = HEAD_IN + down * cell_in[1] + foot
    canvas.set_size_inches(width, height)
    corners = [
        (column * cell_in[0] + left_in, foot + (down - 1 - row) * cell_in[1] + BELOW_IN)
        for row in range(down)
        for column in range(across)
    ]
    inner = (cell_in[0] - left_in - RIGHT_IN) / width, (cell_in[1] - ABOVE_IN - BELOW_IN) / height
    return [canvas.add_axes((left / width, bottom / height, *inner)) for left, bottom in corners[:count]]


def entitle(canvas: "Figure", text: str) -> None:
    """Print a title of two lines above everything."""
    height = canvas.get_figheight()
    canvas.text(0.5, 1 - 0.05 / height, text, ha="center", va="top", fontsize=FONT_PT)


def add_legend(canvas: "Figure", axes: Iterable["Axes"]) -> None:
    """Put a legend below everything, with each name once."""
    entries = [entry for one in axes for entry in zip(*one.get_legend_handles_labels(), strict=True)]
    handles: dict[str, Any] = {name: handle for handle, name in reversed(entries)}
    names = list(dict.fromkeys(name for _, name in entries))
    columns = min(len(names), _legend_columns(canvas.get_figwidth()))
    canvas.legend([handles[name] for name in names], names, loc="lower center", ncols=columns, borderaxespad=0.1)


def _legend_columns(width_in: float) -> int:
    return max(1, int(width_in / LEGEND_ENTRY_IN))


def _legend_lines(names: int, width_in: float) -> int:
    return math.ceil(names / _legend_columns(width_in))
