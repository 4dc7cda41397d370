"""Which layouts to measure before a long training, and what a wrong order may cost of software that never was.

How far orders differ is told by the profiles that were measured: each is asked for the times of the same layouts, and
our first choice is compared with the one that would be its best. Of software that was never measured the layouts to
measure are chosen as a calibration chooses its runs, by what they would tell of the numbers of host and network.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kareus.adviser.answers import LayoutAnswer, SizeAnswer, Unmeasured
from kareus.adviser.feasible import sort_layouts
from kareus.adviser.limits import unkept_words
from kareus.adviser.order import COMPARED, recommended, settable
from kareus.adviser.question import Question
from kareus.adviser.rows import is_nearly_full
from kareus.adviser.runs import LayoutTimes, roomy
from kareus.calibrate.software_fit import PRIORS, trainer_numbers
from kareus.calibrate.trainer import LinearTimes, telling_runs
from kareus.gpu_model.trust import known_uncertainty
from kareus.prediction.errors import models_of, pair_errors, pair_of
from kareus.workload.compose import compose
from kareus.workload.config import Workload

MEASURED_FIRST = 5
"""Layouts to measure of software that was never measured."""
MEASURED_TIES = 3
"""Layouts to measure of other software: of the first three the best is 0.3 % slower than the best of all
(docs/research/ranking.md); a fit needs three."""


def is_measured(workload: Workload) -> bool:
    """Return whether predictions for a workload's software on its GPU were ever compared with measurements."""
    return pair_of(workload) is not None or known_uncertainty(workload.gpu) is not None


def unmeasured_of(base: Workload, layouts: Sequence[LayoutAnswer], config_dir: Path) -> Unmeasured | None:
    """Return what is known of the order of layouts; None where the software was measured, or there is no choice.

    Models with experts are compared by software that was measured with them.
    """
    run = sorted_by_trainer(layouts)[:COMPARED]
    if is_measured(base) or len(run) < 2:  # noqa: PLR2004 - an order is of two at least
        return None
    others = {pair.software for pair in pair_errors() if pair.models == models_of(base)} - {base.software.name}
    losses = {}
    for name in sorted(others):
        (other,) = compose([f"software={name}"], config_dir)
        losses[name] = _loss_percent(replace(base, software=other.workload.software), run)
    most = max(losses, key=lambda name: losses[name], default=None)
    return Unmeasured(
        software=base.software.name,
        measured_otherwise=(base.gpu.name, base.software.name) in {(pair.gpu, pair.software) for pair in pair_errors()},
        wrong_order_percent=None if most is None else losses[most],
        most_unlike=most,
        compared=len(run),
    )


def to_measure(question: Question, base: Workload, size: SizeAnswer, chosen: LayoutAnswer) -> list[LayoutAnswer]:
    """Return the layouts to measure before a long training, the first choice first; none where there is no choice.

    Those whose time was measured are no more among them.

    Of software that was measured they are the fastest that its error does not tell from the best and that keep the
    limits; of other software, of the first that it runs by itself, those that tell most. Runs that may rank are enough.
    Of both kinds those that fill a GPU's memory come last: one that does not fit tells nothing.
    """
    runs = base.software.measured
    order = [one for one in sorted_by_trainer(size.layouts) if one.candidate.placed not in question.timed]
    if runs is not None and runs.may_rank:
        return []
    listed = order[:COMPARED]
    if is_measured(base):
        best = {choice.layout.number for choice in size.frontier} | {one.number for one in order if one.is_tied}
        tied = [one for one in order if one.number in best and not unkept_words(question, one)]
        listed = sorted(tied, key=lambda one: one.number)
    first = [one for one in order if one.number == chosen.number]  # none where the software has no setting for it
    others = [one for one in listed if one.number != chosen.number]
    listed = [*first, *sorted(others, key=is_nearly_full)]
    if len(listed) < 2:  # noqa: PLR2004 - as above
        return []
    return listed[:MEASURED_TIES] if is_measured(base) else _telling(base, listed)


def _telling(base: Workload, listed: Sequence[LayoutAnswer]) -> list[LayoutAnswer]:
    """Return the first of layouts, and those that tell most beside it of the numbers of a software: with room first."""
    priors = {name: PRIORS[name] for name in trainer_numbers(base.software)}
    values = {name: getattr(base.software, name) or prior.value for name, prior in priors.items()}
    times = LayoutTimes(base, [answer.candidate.workload for answer in listed])
    linear = LinearTimes.of(priors, times.of, values, range(len(listed)))
    covariance = np.diag([prior.spread**2 for prior in priors.values()])
    full = {n for n, answer in enumerate(listed) if is_nearly_full(answer)}
    return [listed[n] for n in telling_runs(linear.slopes, covariance, MEASURED_FIRST, first=[0], last=full)]


def _loss_percent(base: Workload, run: Sequence[LayoutAnswer]) -> float:
    """By how much the first of layouts is slower than the best, by the software of `base`, of those that it can run."""
    asked = [answer.candidate.layout for answer in run]
    able = {candidate.layout for candidate in sort_layouts(roomy(base), asked).candidates}
    workloads = [answer.candidate.workload for answer in run if answer.candidate.layout in able]
    if not workloads:
        return 0.0
    times_s = LayoutTimes(base, workloads).of({})
    return 100 * float(times_s[0] / times_s.min() - 1)


def sorted_by_trainer(layouts: Sequence[LayoutAnswer]) -> list[LayoutAnswer]:
    """Return layouts in the order in which they are recommended where the software runs them by itself, as it can."""
    sequential = [answer.candidate for answer in layouts if answer.sequential is not None]
    able = {id(candidate) for candidate in settable(sequential)}
    run = [
        (answer, answer.sequential.time_s) for answer in layouts if answer.sequential and id(answer.candidate) in able
    ]
    order = recommended([time_s for _, time_s in run], [answer.candidate.memory.total_gib for answer, _ in run])
    return [run[n][0] for n in order]
