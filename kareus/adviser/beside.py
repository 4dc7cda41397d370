"""Layouts that an answer names beside the chosen one: a job's, those that save more, those to take or measure first."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kareus.adviser.answers import (
    Advice,
    LackedOverlap,
    LayoutAnswer,
    LayoutChoice,
    Unmeasured,
    plans_of,
)
from kareus.adviser.choosing import best_of, plan_asked, telling_constraints
from kareus.adviser.goals import Least
from kareus.adviser.layouts import constraints_of
from kareus.adviser.limits import broken_words, keeps
from kareus.adviser.order import FULL_SHARE, TIED_SHARE
from kareus.adviser.predictions import LayoutCost
from kareus.adviser.rows import YOURS, full_words, is_nearly_full, memory_share
from kareus.adviser.runs import LayoutRun, RunFailure, runs_text
from kareus.adviser.unmeasured import sorted_by_trainer
from kareus.calibrate.trainer import LEAST_RUNS
from kareus.plans.actuated import SLOWER
from kareus.plans.answer import LITTLE_SLOWER, SAME_SHARE, little_to_gain
from kareus.plans.units import compared, less, scaled, significant
from kareus.prediction.errors import time_percent
from kareus.software.trainers import ClockPace
from kareus.workload.memory import MAY_FIT

FIRST_BY_ITSELF = 3
"""Layouts that are named in the order in which the software runs them by itself."""


def job_lines(advice: Advice) -> Iterator[str]:
    """Yield what overlap a job lacks where that costs time, and what the chosen layout gains over it without a plan."""
    if advice.lacked is not None:
        yield lacked_line(advice, advice.lacked)
    if alone := job_gain(advice):
        yield alone


def lacked_line(advice: Advice, lacked: LackedOverlap) -> str:
    """Return what a layout takes with the overlap that a job lacks, beside that without it, or less than the choice.

    The error of that time is given where it is not the choice's.
    """
    with_s, without_s, chosen_s = (
        scaled(time_s, "s", digits=4) for time_s in (lacked.with_s, lacked.without_s, advice.chosen.cost.time_s)
    )
    chosen = advice.chosen.layout
    is_chosen = lacked.layout.number == chosen.number
    error, other = time_percent(lacked.overlapped), time_percent(chosen.candidate.workload)
    errors = "" if error == other else f", at an error of {error:g} % instead of {other:g} %"
    if is_chosen or lacked.with_s >= advice.chosen.cost.time_s:
        saved = less(100 * (1 - lacked.with_s / lacked.without_s), "time")
        takes = f"{saved}: {with_s} instead of {without_s}{errors}"
    else:
        takes = f"{with_s} without a plan instead of {without_s}, less than the choice's {chosen_s}{errors}"
    what = "it" if is_chosen else f"{lacked.layout.candidate.words}{full_words(lacked.layout)},"
    settings = " and ".join(lacked.settings)
    return f"first add {settings}, which your script lacks, and ask again: {what} then takes {takes}"


def job_gain(advice: Advice) -> str:
    """Return what the chosen layout gains without a plan over that of a job, or nothing."""
    without = advice.chosen.layout.sequential
    if advice.size.job is None or without is None or advice.is_reference:
        return ""
    saved = savings_words(advice.size.job, without, YOURS)
    return f"the layout alone, without a plan: {saved}: {iteration_words(without)}"


def frugal_lines(advice: Advice) -> Iterator[str]:
    """Yield what a little more time saves, where there is little to gain at full speed, and in which layout most.

    It is one line of the chosen layout, or a list where others save more.
    """
    first, baseline = advice.chosen.layout.fastest, advice.size.baseline.cost
    if advice.chosen.cost != first:
        return
    most_s = first.time_s * LITTLE_SLOWER
    slower = [choice for choice in plans_of([advice.chosen.layout]) if choice.cost.time_s <= most_s]
    slowest = min(slower, key=lambda choice: choice.cost.energy_j)
    if not keeps(advice.question, slowest):
        return
    frugal = slowest.cost
    said = little_to_gain(
        1 - first.time_s / baseline.time_s,
        1 - first.energy_j / baseline.energy_j,
        frugal.time_s / baseline.time_s - 1,
        1 - frugal.energy_j / baseline.energy_j,
    )
    if said is None:
        return
    is_asked = advice.question.trainer.clocks is ClockPace.STEP
    to_do = "what the line below asks for" if is_asked else f"plan it with `--select {SLOWER}` in the command below"
    said = f"{'by the plan alone, ' if job_gain(advice) else ''}{said}"
    if others := list(_frugal_layouts(advice, most_s, frugal)):
        yield f"{said.partition('; ')[0]}; more time saves more, each against the choice:"
        for choice in _worth_naming([slowest, *others]):
            what = f"this layout; {to_do}" if choice is slowest else _other_words(advice, choice)
            yield f"  {_beside(advice, choice.cost)}: {what}"
    else:
        yield f"{said} in this layout: {to_do}"


def _worth_naming(choices: Sequence[LayoutChoice]) -> list[LayoutChoice]:
    """Return choices without those that one with room in memory beats in time and energy: those with room first.

    Of these comes first what saves most for its time.
    """
    sure = [choice.cost for choice in choices if not is_nearly_full(choice.layout)]
    left = [
        choice
        for choice in choices
        if not any(cost.time_s < choice.cost.time_s and cost.energy_j < choice.cost.energy_j for cost in sure)
    ]
    return sorted(left, key=lambda choice: (is_nearly_full(choice.layout), _energy_time(choice)))


def _beside(advice: Advice, cost: LayoutCost) -> str:
    """Return how much more or less than the chosen plan another one takes of time and energy, and how much that is."""
    first = advice.chosen.cost
    time, energy = (
        less(100 * (1 - now / then), of)
        for now, then, of in ((cost.time_s, first.time_s, "time"), (cost.energy_j, first.energy_j, "energy"))
    )
    return f"{time} and {energy}, {iteration_words(cost)}"


def _frugal_layouts(advice: Advice, most_s: float, frugal: LayoutCost) -> Iterator[LayoutChoice]:
    """Yield the layouts that save most for the time that they take: of those with room in memory, and of the others.

    Each saves plainly more than the chosen one as slow as that, and has plainly less energy times time than the one
    before. It is named by its plan `fastest` or by its most frugal one within a time.
    """
    layouts = [layout for layout in advice.size.layouts if layout.plans]
    plans = [plan for layout in layouts for plan in _steps(layout, most_s) if keeps(advice.question, plan)]
    most_j, most_js = frugal.energy_j * (1 - SAME_SHARE), math.inf
    for is_full in (False, True):
        within = [plan for plan in plans if is_nearly_full(plan.layout) is is_full and plan.cost.energy_j <= most_j]
        best = min(within, key=_energy_time, default=None)
        if best is None or _energy_time(best) > most_js:
            continue
        most_js = _energy_time(best) * (1 - SAME_SHARE)
        yield best


def _other_words(advice: Advice, choice: LayoutChoice) -> str:
    """Return another layout with the memory that it needs, and how its plan is asked for."""
    memory = f"{100 * memory_share(choice.layout):.0f} % of memory"
    memory += f"{_over_words(choice.layout)}, so try it first" if is_nearly_full(choice.layout) else ""
    return f"{choice.layout.candidate.words}, at {memory}; {_asked_for(advice, choice)}"


def _steps(layout: LayoutAnswer, most_s: float) -> list[LayoutChoice]:
    """Return the plan `fastest` of a layout and its most frugal one, each if it takes no more than a time."""
    within = [plan for plan in layout.plans if plan.time_s <= most_s]
    steps = [plan for plan in (layout.fastest, *within[-1:]) if plan in within]  # energy falls along a frontier
    return [LayoutChoice(layout=layout, cost=plan) for plan in steps]


def _energy_time(choice: LayoutChoice) -> float:
    return choice.cost.energy_j * choice.cost.time_s


def _asked_for(advice: Advice, choice: LayoutChoice) -> str:
    """Return how a plan of another layout is asked for."""
    selector = replace(advice, chosen=choice).selector
    slower = "" if selector == advice.selector else f", then `--select {selector}`"
    return f"ask again with `{' '.join(asked_words(advice, choice.layout))}`{slower}"


def asked_words(advice: Advice, layout: LayoutAnswer) -> tuple[str, ...]:
    """Return the constraints by which another layout is asked for: all that it has, where it was not planned."""
    if not layout.plans:
        return constraints_of(layout.candidate.layout).words
    return telling_constraints(advice.question, layout, advice.size.layouts)


def unfit_line(advice: Advice) -> str:
    """Return which layouts are left out since they ran out of memory when they were measured, or nothing."""
    unfit = [one for one in advice.question.unfit if one.gpus == advice.chosen_gpus]
    if not unfit:
        return ""
    uneven = [len(set(one.layers_per_stage or ())) > 1 for one in unfit]
    layouts = zip(unfit, uneven, strict=True)
    words = [(one if is_uneven else replace(one, layers_per_stage=None)).words for one, is_uneven in layouts]
    return f"left out, since {'it' if len(words) == 1 else 'they'} ran out of memory when measured: {'; '.join(words)}"


def full_line(advice: Advice) -> str:
    """Return a word on a chosen layout that fills a GPU's memory, with the best that does not; or nothing."""
    if not is_nearly_full(advice.chosen.layout):
        return ""
    goals, selector = advice.question.goals, advice.selector
    costs_of = [
        (plan_asked(advice.question, selector, layout) if layout.plans else layout.sequential, layout)
        for layout in advice.size.layouts
        if not is_nearly_full(layout)
    ]
    others = [LayoutChoice(layout=layout, cost=cost) for cost, layout in costs_of if cost is not None]
    best = best_of(advice.question, others)
    instead = (
        f"no other that was predicted needs less{' and keeps the limits' if goals.limits else ''}"
        if best is None
        else f"the {'fastest' if goals.minimised is Least.TIME else 'best'} below {100 * FULL_SHARE:.0f} % "
        f"{'that keeps the limits ' if goals.limits else ''}is {best.layout.candidate.words}, "
        f"{iteration_words(best.cost)}, at {100 * memory_share(best.layout):.0f} %"
    )
    share, over = f"{100 * memory_share(advice.chosen.layout):.0f} %", _over_words(advice.chosen.layout)
    return f"memory: {share} of a GPU's{over}, so try it before a long training; {instead}"


def _over_words(layout: LayoutAnswer) -> str:
    """Return why a layout is named that needs more than a GPU's memory by the estimate, or nothing."""
    return f" ({MAY_FIT})" if memory_share(layout) > 1 else ""


def order_lines(advice: Advice) -> Iterator[str]:
    """Yield the first layouts to take where the software runs them by itself, without a plan."""
    measured = advice.question.base.software.measured
    if measured is not None:
        yield (
            f"{measured.runs} measured layouts: Kendall's tau {measured.tau:.2f}, each left out; rank by it: "
            f"{'yes' if measured.may_rank else 'no, measure more'}"
        )
    yield ""
    first = sorted_by_trainer(advice.size.layouts)[:FIRST_BY_ITSELF]
    yield (
        f"the first {FIRST_BY_ITSELF} as {advice.question.base.software.name} runs them by itself, without a plan; "
        f"each needs the least memory of those within {100 * TIED_SHARE:.0f} % of the least time that is left:"
    )
    if not first:
        yield "  none of those that were predicted has a setting there for all of it"
    for layout in first:
        assert layout.sequential is not None
        broken = broken_words(advice.question, LayoutChoice(layout=layout, cost=layout.sequential))
        yield (
            f"  {significant(layout.sequential.time_s)} s{broken}, {100 * memory_share(layout):.0f} % of memory"
            f"{full_words(layout)}: {layout.candidate.words}"
        )


def measure_lines(advice: Advice) -> Iterator[str]:
    """Yield what a wrong order may cost, and the file of layouts to measure first."""
    listed, unmeasured = advice.measure_first, advice.unmeasured
    why = "" if unmeasured is None else wrong_order_words(unmeasured)
    first = ", the chosen one first" if listed[0].number == advice.chosen.layout.number else ""
    first += "" if unmeasured is None else ", the others unlike it, so that they tell most"
    file = "these rows added to the file of --measured" if advice.question.timed else "--measured FILE"
    again = (
        f", {RunFailure.OUT_OF_MEMORY} where it runs out of memory, and ask again with {file}"
        if len(listed) >= LEAST_RUNS
        else ""
    )
    full = f" ({words})" if (words := full_rows_words(listed)) else ""
    yield (
        f"{why}Measure these {len(listed)} layouts before a long training{first}{full}: write the "
        f"seconds of an iteration behind the last comma{again}:"
    )
    yield from runs_text(list(map(run_of, listed))).splitlines()


def full_rows_words(listed: Sequence[LayoutAnswer], first_row: int = 1) -> str:
    """Return which layouts to measure fill a GPU's memory, such as `row 2 needs 100 % of memory: try it first`."""
    full = [
        f"row {row} needs {100 * memory_share(one):.0f} % of memory"
        for row, one in enumerate(listed, first_row)
        if is_nearly_full(one)
    ]
    return f"{' and '.join(full)}: try {'it' if len(full) == 1 else 'them'} first" if full else ""


def run_of(answer: LayoutAnswer) -> LayoutRun:
    """Return a layout to measure, and what it takes by itself as predicted.

    It has its blocks where stages have not the same: a trainer's own division is another.
    """
    layout, blocks = answer.candidate.layout, answer.candidate.workload.parallelism.placed
    layout = replace(layout, layers_per_stage=tuple(blocks)) if len(set(blocks)) > 1 else layout
    return LayoutRun(layout=layout, predicted_s=None if answer.sequential is None else answer.sequential.time_s)


def sizes_line(advice: Advice) -> str:
    """Return what the fastest layout of each number of GPUs takes by itself; nothing where one number was asked for."""
    if len(advice.sizes) == 1:
        return ""
    costs = (f"{size.gpus}: {iteration_words(size.baseline.cost)}" for size in advice.sizes)
    return f"GPUs, and their fastest layout without a plan: {'; '.join(costs)}"


def wrong_order_words(unmeasured: Unmeasured) -> str:
    """Return what a wrong order may cost of software that was never measured, as a sentence and a space behind it."""
    what = f"{unmeasured.software}{' as it is set here' if unmeasured.measured_otherwise else ''}"
    never = f"{what} was never measured on this GPU"
    if unmeasured.wrong_order_percent is None:
        return f"{never}, nor other software with such models: what a wrong order costs is not known. "
    return (
        f"{never}: were it like {unmeasured.most_unlike}, the first of the {unmeasured.compared} best that it "
        f"runs by itself would be {unmeasured.wrong_order_percent:.0f} % slower than the best of them. "
    )


def iteration_words(cost: LayoutCost) -> str:
    """Return what an iteration takes, such as `271.2 ms and 2.917 kJ`."""
    return f"{scaled(cost.time_s, 's', digits=4)} and {scaled(cost.energy_j, 'J', digits=4)}"


def savings_words(reference: LayoutChoice, cost: LayoutCost, name: str) -> str:
    """Return what a plan saves against a layout by itself, which `name` is of."""
    time = less(100 * (1 - cost.time_s / reference.cost.time_s), "time")
    energy = less(100 * (1 - cost.energy_j / reference.cost.energy_j), "energy")
    return compared(time, energy, name)
