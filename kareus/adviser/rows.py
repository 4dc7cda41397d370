"""Layouts as rows of an answer's table: which are shown, their figures, and what is said behind them."""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence

from kareus.adviser.answers import Advice, LayoutAnswer, SizeAnswer
from kareus.adviser.choosing import plan_asked
from kareus.adviser.limits import unkept_words
from kareus.adviser.order import FULL_SHARE
from kareus.adviser.predictions import LayoutCost
from kareus.plans.units import significant
from kareus.workload.config import Workload
from kareus.workload.memory import MAY_FIT
from kareus.workload.model_flops import mfu, tokens_per_iteration

MOST_ROWS = 12
"""Layouts in the table of the terminal; all are in the files."""
YOURS = "your script's"
"""Whose the layout is of a job whose files were given."""
POWER = "kW"
"""Head of a column that is shown where a limit on power was asked for."""
HEADS = (
    "#", "s", "kJ", POWER, "tokens/s", "mJ/token", "MFU %", "least kJ", "at s", "no plan s", "GiB", "% of memory",
    "bubbles %", "exposed %",
)  # fmt: skip
LEAST_ROOM = 24
"""Columns that the words of a layout need in a narrow terminal, in which they go on below."""
LESS_TELLING = ("exposed %", "bubbles %", "MFU %", "tokens/s", "at s", "least kJ", "mJ/token", "GiB", "no plan s")
"""Figures that are left out where a terminal is narrow, one after the other."""


def shown(advice: Advice, size: SizeAnswer) -> list[LayoutAnswer]:
    """Return the layouts of a table by rising time: the chosen one, all on the frontier, and the fastest others."""
    first = {choice.layout.number for choice in size.frontier}
    if size.gpus == advice.chosen_gpus:
        first |= {advice.chosen.layout.number}  # which a limit may move off the frontier
    if size.job is not None:
        first |= {size.job.layout.number}
    others = [layout for layout in size.layouts if layout.plans and layout.number not in first]
    kept = {layout.number for layout in others[: max(0, MOST_ROWS - len(first))]} | first
    return [layout for layout in size.layouts if layout.number in kept]


def heads(advice: Advice) -> list[str]:
    """Return the heads of the figures of layouts that an answer shows, in the order of `HEADS`."""
    return [head for head in HEADS if head != POWER or advice.question.goals.caps]


def cells(layout: LayoutAnswer, plan: LayoutCost | None) -> dict[str, str]:
    """Return the figures of a layout by `HEADS`: of a plan, without which its own are dashes, and of the layout."""
    workload, last = layout.candidate.workload, layout.plans[-1]
    return (dict.fromkeys(HEADS, "-") if plan is None else _plan_cells(workload, plan)) | {
        "#": str(layout.number),
        "least kJ": significant(last.energy_j / 1e3),
        "at s": significant(last.time_s),
        "no plan s": significant(layout.sequential.time_s) if layout.sequential else "",
        "GiB": f"{layout.candidate.memory.total_gib:.1f}",
        "% of memory": f"{100 * memory_share(layout):.0f}",
        "bubbles %": f"{100 * (layout.bubble_share or 0.0):z.1f}",
        "exposed %": f"{100 * (layout.exposed_share or 0.0):z.1f}",
    }


def _plan_cells(workload: Workload, plan: LayoutCost) -> dict[str, str]:
    tokens = tokens_per_iteration(workload)
    return {
        "s": significant(plan.time_s),
        "kJ": significant(plan.energy_j / 1e3),
        POWER: significant(plan.power_w / 1e3),
        "tokens/s": f"{tokens / plan.time_s:,.0f}",
        "mJ/token": significant(1e3 * plan.energy_j / tokens, 3),
        "MFU %": f"{100 * mfu(workload, plan.time_s):.1f}",
    }


def memory_share(layout: LayoutAnswer) -> float:
    """Return the share of a GPU's memory that a layout is estimated to need."""
    return layout.candidate.memory.total_gib / layout.candidate.workload.gpu.memory_gib


def is_nearly_full(layout: LayoutAnswer) -> bool:
    """Whether a layout fills a GPU's memory by the estimate, so that it has to be tried first."""
    return memory_share(layout) > FULL_SHARE


def full_words(layout: LayoutAnswer) -> str:
    """Return a warning behind a layout that fills a GPU's memory by the estimate, or nothing."""
    return f", over {100 * FULL_SHARE:.0f} % of memory: try it first" if is_nearly_full(layout) else ""


def full_note(layouts: Iterable[LayoutAnswer]) -> str:
    """Return why layouts are listed that fill a GPU's memory by the estimate, where some of these do; or nothing."""
    return f"memory: {MAY_FIT}" if any(map(is_nearly_full, layouts)) else ""


def job_words(advice: Advice, layout: LayoutAnswer) -> str:
    """Return that a layout is that of the job whose files were given, or nothing."""
    job = advice.question.job
    return f", {YOURS}" if job is not None and job == layout.candidate.layout else ""


def table_lines(
    advice: Advice, layouts: Sequence[LayoutAnswer], on_frontier: Collection[int], columns: int | None = None
) -> Iterator[str]:
    """Yield a table of layouts by the plan that is asked for; those on the frontier and ties are marked.

    In so many columns figures are left out until the words of a layout have room, and words go on below.
    """
    unkept = [unkept_words(advice.question, layout) for layout in layouts]
    rows = [cells(layout, plan_asked(advice.question, advice.selector, layout)) for layout in layouts]
    widths = {head: max(map(len, (head, *(row[head] for row in rows)))) for head in heads(advice)}
    words = [
        f"{layout.candidate.words}{job_words(advice, layout)}{full_words(layout)}{why}"
        for layout, why in zip(layouts, unkept, strict=True)
    ]
    if columns is not None:
        room = min(LEAST_ROOM, max(map(len, words), default=0))
        for head in LESS_TELLING:
            if 2 + sum(width + 2 for width in widths.values()) + room > columns:
                del widths[head]
    indent = 2 + sum(width + 2 for width in widths.values())
    yield "  " + "  ".join(head.rjust(width) for head, width in widths.items()) + "  layout"
    for layout, row, said, why in zip(layouts, rows, words, unkept, strict=True):
        mark = " " if why else "*" if layout.number in on_frontier else "~" if layout.is_tied else " "
        figures = "  ".join(row[head].rjust(width) for head, width in widths.items())
        first, *more = textwrap.wrap(said, max(columns - indent, LEAST_ROOM)) if columns is not None else [said]
        yield f"{mark} {figures}  {first}"
        yield from (" " * indent + line for line in more)
