"""Tables of plain text for a terminal of 100 columns."""

from collections.abc import Sequence

DASH = "\u2013"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> list[str]:
    """Lay out cells in columns: the first `texts` to the left, numbers to the right, under a rule."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    rule = ["\u2500" * width for width in widths]
    return [
        "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, rule, *rows)
    ]


def percent_within(value: float | None, error: float | None) -> str:
    """A percentage with its standard error in points, if there is one."""
    if value is None or not error:
        return percent(value)
    return f"{percent(value).removesuffix(' %')}\u00b1{error:.1f} %"


def percent(value: float | None, *, digits: int = 1) -> str:
    """A percentage, or a dash if there is none."""
    return DASH if value is None else f"{round(value, digits) + 0.0:.{digits}f} %"  # + 0.0 turns -0.0 into 0.0
