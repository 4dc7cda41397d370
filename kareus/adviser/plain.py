"""The answer as one plain object, for JSON."""

import dataclasses
from typing import Any

from kareus.adviser.answers import Advice, FormatAnswer, LackedOverlap, LayoutAnswer, LayoutChoice, SizeAnswer
from kareus.adviser.beside import full_line, unfit_line
from kareus.adviser.lines import (
    chips,
    commands,
    engine_line,
    error_text,
    headline,
    joules_per_token,
    layout_text,
    measured_words,
    training_line,
    turn_on_lines,
)
from kareus.adviser.question import Question
from kareus.adviser.rows import memory_share
from kareus.adviser.tables import layouts_frame, plans_frame
from kareus.adviser.unmeasured import sorted_by_trainer
from kareus.artifacts.records import to_plain
from kareus.prediction.errors import time_percent


def plain(advice: Advice) -> dict[str, Any]:
    """Return an answer as plain values: the chosen plan, the baseline, frontiers, and how far layouts were followed."""
    return {
        "asked": asked(advice.question),
        "model": advice.question.base.model.name,
        "gpu": advice.question.base.gpu.name,
        "global_batch": advice.question.global_batch,
        "sequence_length": advice.question.base.sequence_length,
        "chosen": {"gpus": advice.chosen_gpus, "selector": advice.selector, **_choice(advice.chosen)},
        "overrides": list(advice.overrides),
        "headline": headline(advice),
        "layout": layout_text(advice),
        "training": training_line(advice) or None,
        "job": None if advice.size.job is None else _choice(advice.size.job),
        "lacked": None if advice.lacked is None else _lacked(advice.lacked),
        "trainer": advice.question.trainer.title,
        "engine": None if advice.engine is None else {**to_plain(advice.engine), "words": engine_line(advice)},
        "turned_on_by": list(turn_on_lines(advice)),
        "currency": advice.question.goals.currency,
        "series": advice.question.goals.understood,
        "commands": list(commands(advice)),
        "sizes": [_size(advice, size) for size in advice.sizes],
        "left_out": {str(gpus): reason for gpus, reason in advice.left_out.items()},
        "chips": chips(advice),
        "ties": {**to_plain(advice.ties), "error": error_text(advice)},
        "memory": full_line(advice),
        "unfit": unfit_line(advice),
        "by_itself": [_by_itself(answer) for answer in sorted_by_trainer(advice.size.layouts)],
        "unmeasured": to_plain(advice.unmeasured),
        "measure_first": [_named(answer) for answer in advice.measure_first],
        "formats": [_format(answer) for answer in advice.formats],
    }


def asked(question: Question) -> dict[str, Any]:
    """Return a question as plain values, by which it is told from others; what was measured is no part of it."""
    job = {} if question.job is None else {"job": question.job.words}
    return job | {
        "overrides": sorted(question.overrides),
        "gpus": list(question.gpus),
        "global_batch": question.global_batch,
        "sequence_length": question.base.sequence_length,
        "constraints": {name: values for name, values in to_plain(question.constraints).items() if values},
        "goals": {name: value for name, value in to_plain(question.goals).items() if value not in (None, "")},
        "trainer": question.trainer.title,
        "precisions": list(map(str, question.precisions)),
    }


def _format(answer: FormatAnswer) -> dict[str, Any]:
    precision = {"precision": str(answer.precision), "refusal": answer.refusal or None}
    if answer.choice is None:
        return precision
    layout = answer.choice.layout
    return {
        **precision,
        **_choice(answer.choice),
        "joules_per_token": joules_per_token(answer.choice),
        "memory_gib": layout.candidate.memory.total_gib,
        "memory_share": memory_share(layout),
        "measured": measured_words(layout.candidate.workload),
    }


def _size(advice: Advice, size: SizeAnswer) -> dict[str, Any]:
    of_size = dataclasses.replace(advice, sizes=[size])
    layouts = layouts_frame(of_size)
    return {
        "gpus": size.gpus,
        "baseline": _choice(size.baseline),
        "effort": {**to_plain(size.effort), "total_s": size.effort.total_s},
        "frontier": plans_frame(of_size).to_dicts(),
        "layouts": layouts.filter(layouts["depth"].is_in(["predicted", "planned"])).to_dicts(),
    }


def _lacked(lacked: LackedOverlap) -> dict[str, Any]:
    times = {"without_s": lacked.without_s, "with_s": lacked.with_s, "error_percent": time_percent(lacked.overlapped)}
    return {"settings": list(lacked.settings), **_named(lacked.layout), **times}


def _named(layout: LayoutAnswer) -> dict[str, Any]:
    return {
        "layout": to_plain(layout.candidate.layout),
        "words": layout.candidate.words,
        "number": layout.number,
    }


def _by_itself(layout: LayoutAnswer) -> dict[str, Any]:
    return {
        **_named(layout),
        "time_s": None if layout.sequential is None else layout.sequential.time_s,
        "memory_share": memory_share(layout),
    }


def _choice(choice: LayoutChoice) -> dict[str, Any]:
    return {
        **_named(choice.layout),
        "time_s": choice.cost.time_s,
        "energy_j": choice.cost.energy_j,
    }
