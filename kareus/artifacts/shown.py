"""Records that people print, or look at in a notebook: three lines, and in a notebook a figure above them.

Who draws them is in a room above those of the records, and the Python API names it (`show_with`).
"""

from collections.abc import Callable
from typing import Any, Protocol


class Drawer(Protocol):
    """What knows the lines and figures of records."""

    def lines(self, record: Any) -> list[str]:
        """Return three lines: what a record is, what it takes, how good that is."""
        ...

    def html(self, record: Any) -> str:
        """Return the figure of a record above its lines."""
        ...


_drawers: list[Callable[[], Drawer]] = []


def show_with(drawer: Callable[[], Drawer]) -> None:
    """Have all records shown by what a function returns, which is called when the first is shown."""
    _drawers[:] = [drawer]


class Shown:
    """Gives a record the text and the figure of its type; where nothing draws, the text is that of any record.

    The methods are those that IPython asks for: a terminal gets text alone, and waits for no figure.
    """

    __slots__ = ()

    def __str__(self) -> str:
        """Return three lines."""
        return "\n".join(_drawers[0]().lines(self)) if _drawers else repr(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's signature
        printer.text("..." if cycle else str(self))

    def _repr_html_(self) -> str | None:
        return _drawers[0]().html(self) if _drawers else None
