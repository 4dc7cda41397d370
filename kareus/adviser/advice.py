"""Answering a question: enumerate, refuse, bound, predict, plan in full, choose (`following` has the steps between)."""

import logging
import time
from dataclasses import replace

from threadpoolctl import threadpool_limits

from kareus.adviser.answers import (
    Advice,
    Depth,
    Effort,
    FormatAnswer,
    LayoutChoice,
    SizeAnswer,
)
from kareus.adviser.choosing import by_selector, choices_of, choose
from kareus.adviser.feasible import Sorted, nearest_to_fit, sort_layouts
from kareus.adviser.following import baseline_of, by_bound, follow, layout_answers, nearest_fitting, plans_frontier
from kareus.adviser.job import job_choice, job_of, lacked_overlap
from kareus.adviser.layouts import Constraints, counted, layouts_of
from kareus.adviser.limits import check_cap, limited
from kareus.adviser.order import trainable, with_setting
from kareus.adviser.planning import plan_layout
from kareus.adviser.predictions import LayoutCost, LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.question import Question
from kareus.adviser.ties import tie_margin
from kareus.adviser.unmeasured import to_measure, unmeasured_of
from kareus.errors import ConfigError, RefusedWorkloadError, with_notes
from kareus.graph.number_formats import Precision
from kareus.pareto import as_fast_s
from kareus.prediction.remedies import misfit_lines, why_not
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.record import driven
from kareus.workload.combinations import check_format
from kareus.workload.config import Workload
from kareus.workload.propose import nearest_batch

logger = logging.getLogger(__name__)


def answer(question: Question) -> Advice:
    """Answer a question.

    Raises:
        RefusedWorkloadError: no layout can run, with what is nearest.
        ConfigError: no plan keeps the limits, with what is nearest; or the testbed is not simulated.
    """
    base = limited(question)
    with threadpool_limits(limits=1):
        costs = InstructionPrices(base, trainer=question.trainer)
        sizes, left_out = [], {}
        for gpus in question.gpus:
            try:
                size = _size(question, base, costs, gpus)
                choose(question, [size])
                sizes.append(size)
            except ConfigError as error:
                if len(question.gpus) == 1:
                    raise
                left_out[gpus] = with_notes(error)
    if not sizes:
        gpus, reason = next(iter(left_out.items()))
        raise RefusedWorkloadError(f"--gpus: none of {', '.join(map(str, left_out))} will do; {gpus} GPUs: {reason}")
    choices = [choice for size in sizes for choice in choices_of(question, size)]
    chosen = by_selector(question, choose(question, sizes), choices)
    with threadpool_limits(limits=1):
        engine = None if question.trainer.overlaps else _in_engine(base, chosen)
    chosen_gpus = chosen.layout.candidate.layout.gpus
    (size,) = (size for size in sizes if size.gpus == chosen_gpus)
    return Advice(
        question=question,
        sizes=sizes,
        left_out=left_out,
        chosen=chosen,
        chosen_gpus=chosen_gpus,
        unmeasured=unmeasured_of(base, size.layouts, question.config_dir),
        lacked=lacked_overlap(question, base, size.layouts, chosen.layout),
        measure_first=to_measure(question, base, size, chosen.layout),
        engine=engine,
        formats=[_in_format(question, chosen, precision) for precision in question.precisions],
    )


def _in_format(question: Question, chosen: LayoutChoice, precision: Precision) -> FormatAnswer:
    """Answer a question on as many GPUs as were chosen with products in another number format."""
    base, refusal = question.base, ""
    if precision is not base.precision:
        gpus, other = (chosen.layout.candidate.layout.gpus,), replace(base, precision=precision)
        try:
            check_format(precision, base.gpu)
            chosen = answer(replace(question, base=other, gpus=gpus, precisions=())).chosen
        except ConfigError as error:
            refusal = with_notes(error)
    return FormatAnswer(precision=precision, choice=None if refusal else chosen, refusal=refusal)


def _in_engine(base: Workload, chosen: LayoutChoice) -> LayoutCost | None:
    """Return the plan `fastest` of the chosen layout in Kareus' engine, which runs all of a plan; None if not this."""
    candidate = chosen.layout.candidate
    if engine_refusal(candidate.workload):
        return None
    predictor = LayoutPredictor(base, InstructionPrices(base))
    plans = plan_layout(predictor, predictor.predict(candidate, predictor.bound(candidate.workload)))
    within_s = as_fast_s(plan.time_s for plan in plans)
    return [plan for plan in plans if plan.time_s <= within_s][-1]  # energy falls along a frontier


def _size(question: Question, base: Workload, costs: InstructionPrices, gpus: int) -> SizeAnswer:
    """Answer for one number of GPUs."""
    base = replace(base, gpu=driven(base.gpu, base.software, gpus))
    check_cap(question, base, gpus)
    begin = time.perf_counter()
    logger.info("%s in %s on %d GPUs: listing layouts", base.model.name, base.precision, gpus)
    layouts, job = list(layouts_of(base, gpus, question.global_batch, question.constraints)), job_of(question, gpus)
    if job is not None and question.constraints.allow(job) and job not in layouts:
        layouts.append(job)
    enumerated, as_listed = sort_layouts(base, layouts, question.unfit), set(layouts)
    predictor = LayoutPredictor(base, costs, question.trainer)
    short = trainable(enumerated.short(base), question.trainer)
    if not enumerated.candidates:
        enumerated = replace(enumerated, candidates=nearest_fitting(predictor, short, question.trainer, question.unfit))
        short = []
    _check_any(question, base, gpus, enumerated)
    enumerated = with_setting(enumerated, question.trainer)
    listed = time.perf_counter()
    can_run = sum(candidate.layout in as_listed for candidate in enumerated.candidates)
    cannot, others = len(enumerated.refusals), len(enumerated.candidates) - can_run
    fits = f", {others:,} can with other blocks on their stages" if others else ""
    logger.info("%s", f"{can_run:,} layouts can run, {cannot:,} cannot{fits}; predicting")
    bounded = by_bound(enumerated.candidates, costs)
    bounds_done = time.perf_counter()
    followed = follow(predictor, bounded, job, question.unfit)
    predicted = time.perf_counter()
    ruled_out = ", since bounds rule out the others" if len(followed.predictions) < len(bounded) else ""
    logger.info("%s predicted in full%s; planning the best", f"{len(followed.predictions):,}", ruled_out)
    planned = followed.plan()
    followed.split_otherwise(planned, question.trainer)
    followed.fit_otherwise(short, planned, question.trainer)
    done = time.perf_counter()
    ties = tie_margin([prediction.candidate.workload for prediction in followed.predictions])
    answers = layout_answers(followed, planned, ties)
    depths = [layout.depth for layout in answers if layout.candidate.layout in as_listed]
    return SizeAnswer(
        gpus=gpus,
        layouts=answers,
        refusals=enumerated.refusals,
        frontier=plans_frontier(answers),
        baseline=baseline_of(answers),
        ties=ties,
        job=None if job is None else job_choice(predictor, base, job, answers),
        effort=Effort(
            configurations=can_run + cannot,
            refused=enumerated.reasons,
            bounded=can_run,
            predicted=sum(depth is not Depth.BOUNDED for depth in depths),
            planned=sum(depth is Depth.PLANNED for depth in depths),
            resplit=len(answers) - len(depths),
            enumerate_s=listed - begin,
            bound_s=bounds_done - listed,
            predict_s=predicted - bounds_done,
            plan_s=done - predicted,
        ),
    )


def _check_any(question: Question, base: Workload, gpus: int, layouts: Sorted) -> None:
    """Check that a layout can run.

    Raises:
        RefusedWorkloadError: none can; with the reasons, and as notes what is nearest and what makes it fit.
    """
    if layouts.candidates:
        return
    if not layouts.refusals:
        raise RefusedWorkloadError(_without_layouts(question, base, gpus))
    none = f"none of {len(layouts.refusals):,} layouts can run on {gpus} GPUs ({counted(layouts.reasons)})"
    nearest = nearest_to_fit(layouts.refusals)
    if nearest:
        layout, _ = nearest
        misfit = why_not(layout.workload(base))
        error = RefusedWorkloadError(
            f"{none}; the nearest needs {misfit.memory.total_gib:.1f} of {base.gpu.memory_gib:.1f} GiB; give more GPUs "
            "or fewer constraints."
        )
        for line in misfit_lines(f"nearest: {layout.words}", misfit):
            error.add_note(line)
        raise error
    why = _unfilled(question, base, gpus, layouts) or f"the first: {layouts.refusals[0].message}"
    raise RefusedWorkloadError(f"{none}; {why}")


def _unfilled(question: Question, base: Workload, gpus: int, layouts: Sorted) -> str:
    """Return that GPUs do not fill nodes, where no layout has tensor and context groups that lie evenly on these."""
    linked, node = base.gpu.linked_gpus(gpus), base.gpu.gpus_per_node
    groups = {refusal.layout.tp * refusal.layout.cp for refusal in layouts.refusals}
    is_asked = question.constraints.tp or question.constraints.cp
    if is_asked or not gpus % node or any(not linked % group or not group % linked for group in groups):
        return ""
    whole = [count for count in (gpus // node * node, -(-gpus // node) * node) if count]
    return f"{gpus} GPUs do not fill nodes of {node}; try {' or '.join(map(str, whole))}."


def _without_layouts(question: Question, base: Workload, gpus: int) -> str:
    """Return why there is no layout at all: the constraints, or the batch, do not divide."""
    free = next(layouts_of(base, gpus, question.global_batch, Constraints()), None)
    if free is None:
        replicas = {layout.dp for layout in layouts_of(base, gpus, gpus, Constraints())}  # `gpus` is always one
        return (
            f"--global-batch {question.global_batch}: no layout of {gpus} GPUs divides it; the nearest that does is "
            f"{nearest_batch(question.global_batch, replicas)}."
        )
    for name in ("dp", "pp", "tp", "cp"):
        values = getattr(question.constraints, name)
        alone = Constraints(**{name: values})
        if values and next(layouts_of(base, gpus, question.global_batch, alone), None) is None:
            allowed = {getattr(layout, name) for layout in layouts_of(base, gpus, question.global_batch, Constraints())}
            given, others = (",".join(map(str, each)) for each in (values, sorted(allowed)))
            return f"{name}={given}: no layout of {gpus} GPUs has that; allowed: {others}."
    return f"no layout of {gpus} GPUs keeps the constraints; one that lacks them is {free.words}."
