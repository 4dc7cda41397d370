"""The answer that a run of the workflow ends with: the workflow knows it and sets it, its display shows it.

Both are in one process, the head of the run, and neither knows the other.
"""

from collections.abc import Callable

_LINES: list[Callable[[], list[str]]] = []
"""At most one function."""


def end_with(lines: Callable[[], list[str]]) -> None:
    """Have a run that succeeds, or has nothing to do, end with these lines; called when it is over."""
    _LINES[:] = [lines]


def answer_lines() -> list[str]:
    """Return what the run ends with; nothing if nothing was set."""
    return [line for lines in _LINES for line in lines()]
