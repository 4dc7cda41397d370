"""The answer for people: sentences and the table of layouts, the answer first and the commands last."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kareus.adviser.answers import (
    Advice,
    FormatAnswer,
    LayoutAnswer,
    LayoutChoice,
    SizeAnswer,
    iterations_of,
)
from kareus.adviser.beside import (
    asked_words,
    frugal_lines,
    full_line,
    iteration_words,
    job_lines,
    measure_lines,
    order_lines,
    savings_words,
    sizes_line,
    unfit_line,
)
from kareus.adviser.feasible import nearest_to_fit
from kareus.adviser.layouts import counted
from kareus.adviser.limits import broken_words, idle_limit_line, unkept_words
from kareus.adviser.order import settable_instead, without_setting
from kareus.adviser.question import Question
from kareus.adviser.rows import YOURS, full_note, memory_share, shown, table_lines
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.records import leaves, to_plain
from kareus.errors import ConfigError
from kareus.graph.number_formats import FORMATS
from kareus.interchange.table import trainer_named
from kareus.interchange.writing import ELSEWHERE, layout_apart, layout_line
from kareus.model.config import model_words
from kareus.pareto import AS_FAST
from kareus.pipeline.compare import OURS, THROUGHPUT_BASELINE
from kareus.plans.actuated import clock_goal
from kareus.plans.answer import BASELINE, PREDICTED, meaning, model_error_line
from kareus.plans.exchanges import dispatch_lines
from kareus.plans.units import SECONDS_PER_HOUR, duration, money, scaled, significant
from kareus.prediction.errors import error_of, error_words, time_percent
from kareus.prediction.remedies import parts_words
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.trainers import ENGINE, ClockPace, software_words, trainers
from kareus.workload.arguments import brought
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration
from kareus.workload.resolve import resolve

MEASURED_ANEW = "plans are measured on the simulated testbed, with noise: figures may differ by a point"
"""Why a plan that is made saves another tenth of a percent than the answer says."""
BLOCKS, RAMP = "parallelism.layers_per_stage=null", "training.batch_ramp=[]"
TAKEN_BACK = ((), (BLOCKS,), (RAMP,), (BLOCKS, RAMP))
"""What takes back what a job's files say and a layout of an answer has not: nothing, blocks on stages, a ramp."""
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
        yield from row_lines(advice)
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
    if sizes := sizes_line(advice):
        yield sizes
    yield from frugal_lines(advice)
    if advice.engine is not None and gains_by_engine(advice):
        yield engine_line(advice)
    yield model_error_line(chips(advice), error_text(advice))
    if full := full_line(advice):
        yield full
    if unfit := unfit_line(advice):
        yield unfit
    if unset := unset_line(advice):
        yield unset
    if idle := idle_limit_line(advice.question):
        yield idle
    yield from advice.question.goals.understood
    yield layout_text(advice)


def headline(advice: Advice) -> str:
    """Return model, GPUs and batch, what to do, in which trainer, and what it gains."""
    whose = "its fastest" if advice.size.job is None else YOURS
    this = " (this one)" if advice.is_reference else ""
    saved = savings_words(advice.size.reference, advice.chosen.cost, f"{BASELINE} of {whose} layout{this}")
    what = f"{subject(advice)}, {batch_words(advice)}"
    return f"{what}: {_to_do(advice)}{meaning(advice.selector)}: {saved}: {_costs_words(advice)}"


def gain_words(advice: Advice) -> tuple[str, str]:
    """Return what to do, in which trainer, and what it gains, in few words, and then what these stand for."""
    yours = advice.size.job is not None
    of = "this layout" if advice.is_reference else f"{YOURS if yours else 'its fastest'} layout"
    costs = f"{_costs_words(advice)} of {of} without a plan"
    against = f"{BASELINE} of {YOURS} layout" if yours else BASELINE
    saved = savings_words(advice.size.reference, advice.chosen.cost, against)
    return f"{_to_do(advice)}: {saved}", f"`{advice.selector}`{meaning(advice.selector)}: {costs}"


def _to_do(advice: Advice) -> str:
    words, trainer = advice.chosen.layout.candidate.layout.short_words, advice.question.trainer
    if unset_line(advice):
        return f"{words}, which {trainer.title} does not run, and plan `{advice.selector}`"
    return f"train with {trainer.title}, {words}, and plan `{advice.selector}`"


def _costs_words(advice: Advice) -> str:
    reference = advice.size.reference
    broken = broken_words(advice.question, reference)
    return f"{iteration_words(advice.chosen.cost)} an iteration instead of {iteration_words(reference.cost)}{broken}"


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
    other = "" if advice.is_reference else f"; {whose}, which it is compared with: {words}{unfit}"
    return f"layout: {advice.chosen.layout.candidate.words}{other}"


def layout_settings(advice: Advice) -> str:
    """Return the settings that give its trainer the chosen layout; nothing where the plan does, or none do."""
    workload, trainer = advice.chosen.layout.candidate.workload, advice.question.trainer
    if trainer.settings is None or unset_line(advice):
        return ""
    line = layout_line(trainer_named(trainer.settings), _plain(workload), workload.gpu.gpus_per_node)
    return f"{trainer.title}: {line}"


def _plain(workload: Workload) -> dict[str, Any]:
    return dict(leaves(to_plain(workload)))


def row_lines(advice: Advice) -> Iterator[str]:
    """Yield the settings of each layout to measure first beside the chosen one, such as `row 2: as the chosen, but`."""
    rows = enumerate(advice.measure_first, 1)
    yield from (
        f"row {row}: {_row_settings(advice, one)}" for row, one in rows if one.number != advice.chosen.layout.number
    )


def _row_settings(advice: Advice, layout: LayoutAnswer) -> str:
    """Return in which settings a layout differs from the chosen one; all where that has none; or how to ask for it."""
    asked = f"ask again with `{' '.join(asked_words(advice, layout))}`"
    name, workload = advice.question.trainer.settings, layout.candidate.workload
    if name is None:
        return asked
    table, plain, per_node = trainer_named(name), _plain(workload), workload.gpu.gpus_per_node
    if not layout_settings(advice):
        said = layout_line(table, plain, per_node)
    else:
        given, left_out = layout_apart(table, _plain(advice.chosen.layout.candidate.workload), plain, per_node)
        without = f"without {left_out}" if left_out else ""
        said = f"as the chosen layout, but {', '.join(part for part in (given, without) if part)}"
    return f"{said} ({asked} for that file)" if ELSEWHERE in said else said


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


def gains_by_engine(advice: Advice) -> bool:
    """Whether Kareus' engine does more for the chosen layout than its trainer."""
    fastest, engine = advice.chosen.layout.fastest, advice.engine
    return engine is not None and (
        engine.time_s < fastest.time_s * (1 - AS_FAST) or engine.energy_j < fastest.energy_j * (1 - AS_FAST)
    )


def engine_line(advice: Advice) -> str:
    """Return what the chosen layout would save in Kareus' engine, against the same execution."""
    assert advice.engine is not None
    saved = savings_words(advice.size.reference, advice.engine, "that")
    return f"in {trainers()[ENGINE].title}, this layout: {saved} (--trainer {ENGINE})"


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
        f"turned on in {trainer.title}, which obeys {trainer.obeys}, by these lines, {trainer.where}{once}, "
        f"{trainer.rehearsed_words} ({MEASURED_ANEW}; {trainer.page}):"
    )
    yield from (f"  {line}" for line in trainer.rehearse(str(plan_of(advice)), clock_goal(advice.selector)))
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
