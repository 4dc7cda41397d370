"""The answer for people: sentences and the table of layouts, the answer first and the commands last."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kareus.adviser.answers import (
    Advice,
    FormatAnswer,
    LackedOverlap,
    LayoutAnswer,
    LayoutChoice,
    SizeAnswer,
    Unmeasured,
    iterations_of,
    plans_of,
)
from kareus.adviser.choosing import best_of, plan_asked, telling_constraints
from kareus.adviser.feasible import nearest_to_fit
from kareus.adviser.goals import Least
from kareus.adviser.layouts import counted
from kareus.adviser.limits import broken_words, idle_limit_line, keeps, unkept_words
from kareus.adviser.order import FULL_SHARE, TIED_SHARE, settable_instead, without_setting
from kareus.adviser.predictions import LayoutCost
from kareus.adviser.question import Question
from kareus.adviser.rows import YOURS, full_note, full_words, is_nearly_full, memory_share, shown, table_lines
from kareus.adviser.runs import LayoutRun, runs_text
from kareus.adviser.unmeasured import sorted_by_trainer
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.records import leaves, to_plain
from kareus.calibrate.trainer import LEAST_RUNS
from kareus.errors import ConfigError
from kareus.graph.number_formats import FORMATS
from kareus.interchange.table import trainer_named
from kareus.interchange.writing import layout_line
from kareus.model.config import model_words
from kareus.pareto import AS_FAST
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.plans.actuated import SLOWER, clock_goal
from kareus.plans.answer import BASELINE, LITTLE_SLOWER, SAME_SHARE, little_to_gain, meaning, model_error_line
from kareus.plans.exchanges import dispatch_lines
from kareus.plans.units import SECONDS_PER_HOUR, compared, duration, less, money, scaled, significant
from kareus.prediction.errors import error_of, error_words, time_percent
from kareus.prediction.remedies import parts_words
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.trainers import ENGINE, ClockPace, software_words, trainers
from kareus.workload.arguments import brought
from kareus.workload.config import Workload
from kareus.workload.memory import MAY_FIT
from kareus.workload.model_flops import tokens_per_iteration
from kareus.workload.resolve import resolve

PREDICTED = "predicted by the GPU model"
"""What the figures of an answer are."""
MEASURED_ANEW = "plans are measured on the simulated testbed, with noise: figures may differ by a point"
"""Why a plan that is made saves another tenth of a percent than the answer says."""
BLOCKS, RAMP = "parallelism.layers_per_stage=null", "training.batch_ramp=[]"
TAKEN_BACK = ((), (BLOCKS,), (RAMP,), (BLOCKS, RAMP))
"""What takes back what a job's files say and a layout of an answer has not: nothing, blocks on stages, a ramp."""
FIRST_BY_ITSELF = 3
"""Layouts that are named in the order in which the software runs them by itself."""
V_FORMAT = "torchtitan"
"""Format of exports that has pipelines in a V, which no settings of trainers have."""
FEW_KG = 10_000
"""Masses below this are given in kilograms."""


def answer_lines(advice: Advice, columns: int | None = None) -> Iterator[str]:
    """Yield an answer for a terminal of so many columns; None: as wide as its tables are."""
    yield from _first_lines(advice)
    for size in advice.sizes:
        yield ""
        yield from _size_lines(size, advice, columns)
    for gpus, reason in advice.left_out.items():
        yield f"{gpus} GPUs: {reason}"
    yield from format_lines(advice)
    yield from order_lines(advice)
    if advice.measure_first:
        yield ""
        yield from measure_lines(advice)
    yield ""
    yield from turn_on_lines(advice)
    yield from commands(advice)


def short_lines(advice: Advice) -> Iterator[str]:
    """Yield an answer of a dozen lines, for where the page has all of it."""
    yield from _first_lines(advice)
    yield from format_lines(advice)
    if advice.measure_first:
        yield f"measure first: {len(advice.measure_first)} layouts, which the page lists"
    yield from turn_on_lines(advice)
    yield from commands(advice)


def _first_lines(advice: Advice) -> Iterator[str]:
    """Yield what is chosen, what it saves, how wrong that may be, and what to mind."""
    yield headline(advice)
    yield from job_lines(advice)
    if whole := training_line(advice):
        yield whole
    yield from frugal_lines(advice)
    if advice.engine is not None and gains_by_engine(advice):
        yield engine_line(advice)
    yield model_error_line(chips(advice), error_text(advice))
    if full := full_line(advice):
        yield full
    if unset := unset_line(advice):
        yield unset
    if idle := idle_limit_line(advice.question):
        yield idle
    yield from advice.question.goals.understood
    yield layout_text(advice)


def headline(advice: Advice) -> str:
    """Return model, GPUs and batch, what to do, in which trainer, and what it gains."""
    whose = "its fastest" if advice.size.job is None else YOURS
    this = " (this one)" if _is_reference(advice) else ""
    saved = _savings(advice.size.reference, advice.chosen.cost, f"{BASELINE} of {whose} layout{this}")
    what = f"{subject(advice)}, {batch_words(advice)}"
    return f"{what}: {_to_do(advice)}{meaning(advice.selector)}: {saved}: {_costs_words(advice)}"


def gain_words(advice: Advice) -> tuple[str, str]:
    """Return what to do, in which trainer, and what it gains, in few words, and then what these stand for."""
    yours = advice.size.job is not None
    of = "this layout" if _is_reference(advice) else f"{YOURS if yours else 'its fastest'} layout"
    costs = f"{_costs_words(advice)} of {of} without a plan"
    against = f"{BASELINE} of {YOURS} layout" if yours else BASELINE
    saved = _savings(advice.size.reference, advice.chosen.cost, against)
    return f"{_to_do(advice)}: {saved}", f"`{advice.selector}`{meaning(advice.selector)}: {costs}"


def _to_do(advice: Advice) -> str:
    degrees, trainer = advice.chosen.layout.candidate.layout.degrees_words, advice.question.trainer
    if unset_line(advice):
        return f"{degrees}, which {trainer.title} does not run, and plan `{advice.selector}`"
    return f"train with {trainer.title}, {degrees}, and plan `{advice.selector}`"


def _costs_words(advice: Advice) -> str:
    reference = advice.size.reference
    broken = broken_words(advice.question, reference)
    return f"{_iteration(advice.chosen.cost)} an iteration instead of {_iteration(reference.cost)}{broken}"


def job_gain(advice: Advice) -> str:
    """Return what the chosen layout gains without a plan over that of a job, or nothing."""
    without = advice.chosen.layout.sequential
    if advice.size.job is None or without is None or _is_reference(advice):
        return ""
    return f"the layout alone, without a plan: {_savings(advice.size.job, without, YOURS)}: {_iteration(without)}"


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
        takes = f"{with_s} without a plan, less than the choice's {chosen_s}{errors} (now {without_s})"
    what = "it" if is_chosen else f"{lacked.layout.candidate.words}{full_words(lacked.layout)},"
    settings = " and ".join(lacked.settings)
    return f"first add {settings}, which your script lacks, and ask again: {what} then takes {takes}"


def subject(advice: Advice) -> str:
    """Return what is trained on what, in words, such as `Llama 3.3 70B on 64 H100-SXM5-80GB`."""
    question, gpus = advice.question, advice.chosen.layout.candidate.layout.gpus
    software = question.base.software.name
    by = "" if software in question.trainer.software[:1] else f" as {software_words(software)} runs it"
    return f"{model_words(question.base.model.name)} on {gpus} {question.base.gpu.name}{by}"


def batch_words(advice: Advice) -> str:
    """Return the batch in words, such as `512 sequences of 4,096 tokens`."""
    return f"{advice.question.global_batch:,} sequences of {advice.question.base.sequence_length:,} tokens"


def source_label(advice: Advice) -> str:
    """Return the label of an answer's figures, such as `predicted by the GPU model, H200`: nothing was measured."""
    return f"{PREDICTED}, {advice.question.base.gpu.name}"


def _is_reference(advice: Advice) -> bool:
    """Whether the chosen layout is the one that it is compared with."""
    return advice.size.reference.layout.candidate.layout == advice.chosen.layout.candidate.layout


def _iteration(cost: LayoutCost) -> str:
    return f"{scaled(cost.time_s, 's', digits=4)} and {scaled(cost.energy_j, 'J', digits=4)}"


def layout_text(advice: Advice) -> str:
    """Return the chosen layout as its trainer is given it, and which one it is compared with."""
    words, settings = layout_words(advice), layout_settings(advice)
    return f"{words}; {settings}" if settings else words


def layout_words(advice: Advice) -> str:
    """Return the chosen layout in words, and which one its savings are against."""
    whose = "the fastest without a plan" if advice.size.job is None else YOURS
    compared = advice.size.reference.layout
    words, need = compared.candidate.words, compared.candidate.memory.total_gib
    unfit = f" (which needs {need:.0f} GiB by the estimate, more than a GPU has)" if memory_share(compared) > 1 else ""
    other = "" if _is_reference(advice) else f"; {whose}, which it is compared with: {words}{unfit}"
    return f"layout: {advice.chosen.layout.candidate.words}{other}"


def layout_settings(advice: Advice) -> str:
    """Return the settings that give its trainer the chosen layout; nothing where the plan does, or none do."""
    workload, trainer = advice.chosen.layout.candidate.workload, advice.question.trainer
    if trainer.settings is None or unset_line(advice):
        return ""
    plain = dict(leaves(to_plain(workload)))
    return f"{trainer.title}: {layout_line(trainer_named(trainer.settings), plain, workload.gpu.gpus_per_node)}"


def training_line(advice: Advice) -> str:
    """Return what the whole training costs, and without the plan, where its tokens were given; or nothing."""
    if advice.question.goals.tokens is None:
        return ""
    reference = advice.size.reference
    costs = [", ".join(_training_costs(advice, choice)) for choice in (advice.chosen, reference)]
    broken = broken_words(advice.question, reference)
    without = "without a plan" if advice.size.job is None else f"{YOURS} layout"
    return f"the whole training: {costs[0]}; {without}: {costs[1]}{broken}"


def chips(advice: Advice) -> str:
    """Return which GPUs the energies that are given are of."""
    return f"GPUs that train for long in air of {advice.question.base.gpu.ambient_c:g} degC"


def error_text(advice: Advice) -> str:
    """Return how wrong predictions of the chosen layout may be, and of the job's layout where that is not the same."""
    workload, job = advice.chosen.layout.candidate.workload, advice.size.job
    words = error_words(workload)
    if job is None or time_percent(job.layout.candidate.workload) == time_percent(workload):
        return words
    return f"{words}; of {YOURS} layout: take {time_percent(job.layout.candidate.workload):g} %"


def _training_costs(advice: Advice, choice: LayoutChoice) -> list[str]:
    """Return what a whole training costs, as far as it is known."""
    goals, cost = advice.question.goals, choice.cost
    iterations = iterations_of(advice.question, choice)
    time_s, energy_j = iterations * cost.time_s, iterations * cost.energy_j
    said = [duration(time_s), scaled(energy_j / SECONDS_PER_HOUR, "Wh")]
    cost_of_run = goals.money(time_s, energy_j, choice.layout.candidate.layout.gpus)
    if cost_of_run is not None:
        said.append(f"{money(cost_of_run, goals.currency)}")
    carbon_kg = goals.carbon_kg(time_s, energy_j)
    if carbon_kg is not None:
        kilograms = significant(carbon_kg, 3)
        said.append(f"{kilograms} kg CO2" if carbon_kg < FEW_KG else f"{carbon_kg / 1e3:,.1f} t CO2")
    return said


def _savings(reference: LayoutChoice, cost: LayoutCost, name: str) -> str:
    """Return what a plan saves against a layout by itself, which `name` is of."""
    time = less(100 * (1 - cost.time_s / reference.cost.time_s), "time")
    energy = less(100 * (1 - cost.energy_j / reference.cost.energy_j), "energy")
    return compared(time, energy, name)


def gains_by_engine(advice: Advice) -> bool:
    """Whether Kareus' engine does more for the chosen layout than its trainer."""
    fastest, engine = advice.chosen.layout.fastest, advice.engine
    return engine is not None and (
        engine.time_s < fastest.time_s * (1 - AS_FAST) or engine.energy_j < fastest.energy_j * (1 - AS_FAST)
    )


def engine_line(advice: Advice) -> str:
    """Return what the chosen layout would save in Kareus' engine, against the same execution."""
    assert advice.engine is not None
    saved = _savings(advice.size.reference, advice.engine, "that")
    return f"in {trainers()[ENGINE].title}, this layout: {saved} (--trainer {ENGINE})"


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
        yield f"  {_beside(advice, frugal)}: this layout; {to_do}"
        yield from others
    else:
        yield f"{said} in this layout: {to_do}"


def _beside(advice: Advice, cost: LayoutCost) -> str:
    """Return how much more or less than the chosen plan another one takes of time and energy, and how much that is."""
    first = advice.chosen.cost
    time, energy = (
        less(100 * (1 - now / then), of)
        for now, then, of in ((cost.time_s, first.time_s, "time"), (cost.energy_j, first.energy_j, "energy"))
    )
    return f"{time} and {energy}, {_iteration(cost)}"


def _frugal_layouts(advice: Advice, most_s: float, frugal: LayoutCost) -> Iterator[str]:
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
        memory = f"{100 * memory_share(best.layout):.0f} % of memory"
        memory += f"{_over_words(best.layout)}, so try it first" if is_full else ""
        what = f"{best.layout.candidate.words}, at {memory}"
        yield f"  {_beside(advice, best.cost)}: {what}; {_asked_for(advice, best)}"


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
    return (
        f"ask again with `{' '.join(telling_constraints(advice.question, choice.layout, advice.size.layouts))}`{slower}"
    )


FORMAT_HEADS = ("format", "s", "kJ", "mJ/token", "GiB", "% of memory", "measured")


def format_lines(advice: Advice) -> Iterator[str]:
    """Yield a table of the number formats that were to be compared, each with its best layout."""
    if not advice.formats:
        return
    yield ""
    yield f"products of blocks in other formats, each in its best layout of {advice.chosen_gpus} GPUs:"
    rows = [FORMAT_HEADS, *map(_format_cells, advice.formats)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, answer in zip(rows, [None, *advice.formats], strict=True):
        words = answer.choice.layout.candidate.words if answer is not None and answer.choice is not None else "layout"
        last = words if answer is None else answer.refusal or words
        yield "  " + "  ".join(map(str.rjust, row, widths)) + f"  {last}"


def _format_cells(answer: FormatAnswer) -> tuple[str, ...]:
    if answer.choice is None:
        return (str(answer.precision), *[""] * (len(FORMAT_HEADS) - 1))
    cost, layout = answer.choice.cost, answer.choice.layout
    return (
        str(answer.precision),
        significant(cost.time_s),
        significant(cost.energy_j / 1e3),
        significant(1e3 * joules_per_token(answer.choice), 3),
        f"{layout.candidate.memory.total_gib:.1f}",
        f"{100 * memory_share(layout):.0f}",
        measured_words(layout.candidate.workload),
    )


def joules_per_token(choice: LayoutChoice) -> float:
    """Return the energy of a token."""
    return choice.cost.energy_j / tokens_per_iteration(choice.layout.candidate.workload)


def measured_words(workload: Workload) -> str:
    """Return what of a number format was compared with measurements: iterations of the pair, kernels, or nothing."""
    if error_of(workload) is not None:
        return "iterations"
    return "kernels" if FORMATS[workload.precision].is_measured else "never"


def turn_on_lines(advice: Advice) -> Iterator[str]:
    """Yield how the plan is turned on in its trainer; nothing where that has no settings for the layout, or no run."""
    trainer = advice.question.trainer
    if unset_line(advice):
        return
    once = "" if trainer.clocks is ClockPace.STEP else ", once the plan is made"
    yield (
        f"turned on in {trainer.title}, which obeys {trainer.obeys}, by these lines, {trainer.where}{once} "
        f"({MEASURED_ANEW}; {trainer.page}):"
    )
    yield from (f"  {line}" for line in trainer.turn_on(str(plan_of(advice)), clock_goal(advice.selector)))
    if not trainer.overlaps:
        yield from dispatch_lines(advice.chosen.layout.candidate.workload)


def _size_lines(size: SizeAnswer, advice: Advice, columns: int | None) -> Iterator[str]:
    effort = size.effort
    yield (
        f"{effort.configurations:,} layouts of {size.gpus} GPUs: {effort.bounded:,} can run, {effort.predicted:,} "
        f"predicted with plans, {effort.planned_words}; {effort.total_s:.1f} s"
    )
    yield f"refused: {counted(effort.refused) or 'none'}"
    nearest = nearest_to_fit(size.refusals)
    if nearest:
        layout, memory = nearest
        yield (
            f"nearest to fitting of those that do not: {layout.words}: stage {memory.stage} needs "
            f"{memory.total_gib:.1f} GiB: {parts_words(memory)}"
        )
    on_frontier = {choice.layout.number for choice in size.frontier}
    yield from table_lines(advice, shown(advice, size), on_frontier, columns)
    if why := full_note(shown(advice, size)):
        yield why
    others = [answer for answer in size.layouts if answer.is_tied and answer.number not in on_frontier]
    ties = sum(not unkept_words(advice.question, answer) for answer in others)
    if ties:
        yield (f"~ tied: {ties:,} more layout{'s' * (ties > 1)} would be on the frontier (*) with {size.ties.words}")


def _over_words(layout: LayoutAnswer) -> str:
    """Return why a layout is named that needs more than a GPU's memory by the estimate, or nothing."""
    return f" ({MAY_FIT})" if memory_share(layout) > 1 else ""


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
        f"{'that keeps the limits ' if goals.limits else ''}is {best.layout.candidate.words}, {_iteration(best.cost)}, "
        f"at {100 * memory_share(best.layout):.0f} %"
    )
    share, over = f"{100 * memory_share(advice.chosen.layout):.0f} %", _over_words(advice.chosen.layout)
    return f"memory: {share} of a GPU's{over}, so try it before a long training; {instead}"


def unset_line(advice: Advice) -> str:
    """Return a word on a chosen layout that what trains has no setting for, or does not run, or nothing."""
    workload = advice.chosen.layout.candidate.workload
    if advice.question.trainer.overlaps:
        refusal = engine_refusal(workload)
        return f"not run by {advice.question.trainer.title}: {refusal}" if refusal else ""
    unset = without_setting(workload)
    if not unset:
        return ""
    able = settable_instead(workload)
    instead = f", or ask for what it has, such as {' '.join(able)}" if able else ""
    runs = f"torchtitan (kareus export --format {V_FORMAT})" if workload.pipeline.schedule.folds else "Kareus' engine"
    return (
        f"{advice.question.base.software.name} has no setting for {', '.join(unset)}: run the plan with {runs}{instead}"
    )


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
    again = ", and ask again with --measured FILE" if len(listed) >= LEAST_RUNS else ""
    yield (
        f"{why}Measure these {len(listed)} layouts before a long training{first}: write the seconds of an iteration "
        f"behind the last comma{again}:"
    )
    yield from runs_text(list(map(_to_run, listed))).splitlines()


def _to_run(answer: LayoutAnswer) -> LayoutRun:
    """Return a layout to measure, and what it takes by itself as predicted.

    It has its blocks where stages have not the same: a trainer's own division is another.
    """
    layout, blocks = answer.candidate.layout, answer.candidate.workload.parallelism.placed
    layout = replace(layout, layers_per_stage=tuple(blocks)) if len(set(blocks)) > 1 else layout
    return LayoutRun(layout=layout, predicted_s=None if answer.sequential is None else answer.sequential.time_s)


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


def commands(advice: Advice) -> Iterator[str]:
    """Yield the commands that make the chosen plan and export it, where a format has its layout."""
    described = shlex.join(_described(advice))
    method = "" if advice.method == OURS else f" --method {advice.method}"
    output = shlex.quote(str(advice.output))
    yield f"kareus plan {described} --select {plan_selector(advice)}{method} --output {output}"
    if export := _export_format(advice):
        yield f"kareus export {shlex.quote(str(plan_of(advice)))} --format {export}"


def _described(advice: Advice) -> Sequence[str]:
    """Return the words that give `kareus plan` the chosen layout: a job's files, where these describe the same."""
    question, whole = advice.question, advice.overrides
    if not question.files:
        return whole
    files, given, chosen = list(question.files), list(question.given), _resolved(question, whole)
    of_files = brought(files, None, given)[1]
    given += [text for text in whole if text not in (*of_files, *given)]
    for more in TAKEN_BACK:
        try:
            by_files = _resolved(question, brought(files, None, [*given, *more])[1])
        except ConfigError:  # such as stages over which the files' chunks do not divide, or blocks given twice
            continue
        if by_files == chosen:
            return [*(word for file in files for word in ("--from", str(file))), *given, *more]
    return whole


def _resolved(question: Question, overrides: Sequence[str]) -> list[tuple[str, Workload | None]]:
    return [(resolved.name, resolved.workload) for resolved in resolve(overrides, question.config_dir)]


def _export_format(advice: Advice) -> str:
    """Return the format of exports that has the chosen layout, or nothing."""
    if not unset_line(advice):
        return advice.question.trainer.export
    folds = advice.chosen.layout.candidate.workload.pipeline.schedule.folds
    return V_FORMAT if folds and not advice.question.trainer.overlaps else ""


def plan_of(advice: Advice) -> Path:
    """Return the path of the plan that the printed command makes."""
    (resolved,) = resolve(advice.overrides, advice.question.config_dir)
    return WorkloadFolder(advice.output / resolved.name).plan(plan_selector(advice), advice.method)


def plan_selector(advice: Advice) -> str:
    """Return the selector of the printed commands: with one clock for a step the plan says the layout alone."""
    return advice.selector if advice.method != THROUGHPUT_BASELINE else "fastest"
