"""A question after some of its layouts were measured: software that is fitted to them, and those that do not fit."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kareus.adviser.advice import answer
from kareus.adviser.answers import LayoutAnswer
from kareus.adviser.beside import full_rows_words, run_of
from kareus.adviser.feasible import Candidate, placed_layout
from kareus.adviser.limits import limited
from kareus.adviser.question import Question
from kareus.adviser.rows import is_nearly_full
from kareus.adviser.runs import LayoutRun, LayoutTimes, RunFailure, read_runs, runnable, runs_text
from kareus.adviser.unmeasured import sorted_by_trainer, to_measure
from kareus.calibrate.gpu_file import number
from kareus.calibrate.software_fit import PRIORS, trainer_numbers
from kareus.calibrate.software_output import calibrated_software
from kareus.calibrate.trainer import LEAST_RUNS, fit_runs
from kareus.errors import ConfigError
from kareus.software.record import Software, driven
from kareus.workload.resolve import with_split


def with_measured(question: Question, path: Path) -> Question:
    """Return a question whose software has the numbers that measured layouts leave of it, without those out of memory.

    Args:
        question: of a software.
        path: file of runs; those without a time are left out, and those out of memory are no layouts of the answer.

    Raises:
        ArtifactError: the file cannot be used.
        ConfigError: fewer than three runs were measured; with the file that has the next to measure, as notes.
    """
    base, every = question.base, read_runs(path)
    unfit = runnable(base, [run.layout for run in every if run.failure is RunFailure.OUT_OF_MEMORY], path)
    runs = [run for run in every if run.time_s is not None]
    timed = runnable(base, [run.layout for run in runs], path)
    question = replace(question, unfit=tuple(one.placed for one in unfit), timed=tuple(one.placed for one in timed))
    if _ran_out(question):
        question = replace(question, job=None)
    workloads = [run.workload for run in timed]
    if len(runs) < LEAST_RUNS:
        raise _too_few(question, every, unfit, path)
    priors = {name: PRIORS[name] for name in trainer_numbers(base.software)}
    times = LayoutTimes(base, workloads)
    measured_s = [run.time_s for run in runs if run.time_s is not None]
    calibration = fit_runs(priors, times.of, range(len(runs)), measured_s)
    software: Software = calibrated_software(base, base.software.name, calibration)
    numbers = [f"software.{name}={number(value)}" for name, value in calibration.posterior.values.items()]
    return replace(
        question,
        base=replace(base, software=software, gpu=driven(base.gpu, software, base.parallelism.gpus)),
        overrides=(*question.overrides, *numbers),
    )


def _ran_out(question: Question) -> bool:
    """Whether the layout of a job ran out of memory: there is nothing then that an answer could compare with it."""
    job = question.job
    return job is not None and placed_layout(job, with_split(job.workload(question.base))) in question.unfit


def _too_few(question: Question, runs: Sequence[LayoutRun], unfit: Sequence[Candidate], path: Path) -> ConfigError:
    """Return that too few runs have times, with the file as it is with the next layouts to measure as notes."""
    timed = sum(run.time_s is not None for run in runs)
    waiting = sum(run.time_s is None and run.failure is None for run in runs)
    missing = max(0, LEAST_RUNS - timed - waiting)
    more = _next_to_measure(question, runs, unfit, path)[:missing] if missing else []
    memory = f" and {len(unfit)} out of memory" if unfit else ""
    which = "of these rows" if len(more) == missing else "of these rows and of other questions"
    error = ConfigError(
        f"{path}: {timed} measured run{'s' * (timed != 1)}{memory}: a calibration needs {LEAST_RUNS} at least; measure "
        f"{LEAST_RUNS - timed} more {which}, and give a file with their times."
    )
    full = full_rows_words(more, first_row=len(runs) + 1)
    for line in [*runs_text([*runs, *map(run_of, more)]).splitlines(), *([full] if full else [])]:
        error.add_note(line)
    return error


def _next_to_measure(
    question: Question, runs: Sequence[LayoutRun], unfit: Sequence[Candidate], path: Path
) -> list[LayoutAnswer]:
    """Return the layouts to measure that are none of the runs, then the others: those that fit for certain first.

    Where a layout ran out of memory, those do that need less than it.
    """
    advice = answer(replace(question, precisions=()))
    done = {one.placed for one in runnable(question.base, [run.layout for run in runs], path)}
    layouts = [layout for layout in advice.size.layouts if layout.candidate.placed not in done]
    first = to_measure(question, limited(question), replace(advice.size, layouts=layouts), advice.chosen.layout)
    listed = {one.number for one in first}
    others = [one for one in sorted_by_trainer(layouts) if one.number not in listed]
    most_gib = min(one.memory.total_gib for one in unfit) if unfit else math.inf
    return sorted([*first, *others], key=lambda one: is_nearly_full(one) or one.candidate.memory.total_gib >= most_gib)
