"""Blocks on the stages of a pipeline that suit a training better than the usual ones, and what they gain.

What costs least by `split_costs` is a start, from which single blocks are moved; the predictor itself says what the
result is worth. The chunks of a stage get as many blocks each; which of them get what is left over is tried.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
from threadpoolctl import threadpool_limits

from kareus.adviser.feasible import Candidate
from kareus.adviser.layouts import layout_of
from kareus.adviser.order import FULL_SHARE, splits
from kareus.adviser.predictions import LayoutCost, LayoutPrediction, LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.split_costs import SplitCosts, least_split, split_costs, with_blocks
from kareus.graph.instruction import place_in_line
from kareus.pareto import AS_FAST, ROUNDING
from kareus.plans.units import compared, less
from kareus.profile.programs import laid_out_shapes
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.trainers import ObeyingTrainer, trainer_of
from kareus.workload.config import Workload
from kareus.workload.memory import TIGHT, MemoryFit, check_memory, estimate_memory, fit_of, tightness
from kareus.workload.split import as_stages, blocks_words

SLOWER = (1.0, 1.03, 1.1)
"""Times for which the most frugal split is sought, relative to the least."""
MOST_TRIED = 40
"""Splits near the proposed one that are timed: of instructions, which what is proposed knows as the mean of many."""
MOST_TIMED = 200_000
"""Instructions of all iterations that are timed so."""


class Unsplit(StrEnum):
    """Why a layout keeps its usual blocks on stages."""

    NO_SETTING = "what trains cannot be told others"
    NOT_BETTER = "no others gain more than repeated measurements differ by"


def with_searched_split(workload: Workload) -> tuple[Workload, str]:
    """Return a resolved workload with the blocks on its stages that suit its trainer best, and in words what they gain.

    That is the workload itself where no others gain more than repeated measurements differ by. Where it does not fit
    into memory, these are blocks with which it does.

    Raises:
        RefusedWorkloadError: it does not fit, and no blocks on its stages are found with which it does.
    """
    trainer = trainer_of(workload.software.name)
    usual = Candidate(layout=layout_of(workload), workload=workload, memory=estimate_memory(workload))
    with threadpool_limits(limits=1):
        predictor = LayoutPredictor(workload, InstructionPrices(workload, trainer=trainer), trainer)
        if fit_of(workload, usual.memory) is MemoryFit.REFUSED and (
            fitting := fitting_split(predictor, usual, trainer)
        ):
            return fitting.workload, f"blocks on stages: {_fitting_words(usual, fitting)}"
        check_memory(workload, usual.memory)
        before = predictor.predict(usual, predictor.bound(workload))
        after = better_split(predictor, before, trainer)
    if not isinstance(after, Unsplit):
        return after.candidate.workload, f"blocks on stages: {_gain_words(before, after)}"
    reason = f", which others are not better than by {100 * AS_FAST:g} %"
    if after is Unsplit.NO_SETTING:
        reason = f"; {workload.software.name} takes no others here"
    return workload, f"blocks on stages: {_blocks(usual)}{reason}"


def _fitting_words(usual: Candidate, fitting: Candidate) -> str:
    """Return in words the memory of blocks on stages that fit, and that of the usual ones."""
    return (
        f"{_blocks(fitting)}, {fitting.memory.total_gib:.1f} of {fitting.workload.gpu.memory_gib:.1f} GiB"
        f"{tightness(fitting.workload, fitting.memory)}; {_blocks(usual)} would need {usual.memory.total_gib:.1f}"
    )


def _gain_words(before: LayoutPrediction, after: LayoutPrediction) -> str:
    """Return in words what other blocks on stages gain, and the memory that they take."""
    plans = before.plans[0], after.plans[0]
    time, energy = (
        less(100 * (1 - now / then), of)
        for of, then, now in (
            ("time", plans[0].time_s, plans[1].time_s),
            ("energy", plans[0].energy_j, plans[1].energy_j),
        )
    )
    then_gib, now_gib = (f"{each.candidate.memory.total_gib:.1f}" for each in (before, after))
    memory = f"{now_gib} GiB" + (f" instead of {then_gib}" if now_gib != then_gib else ", as before")
    return f"{_blocks(after.candidate)}; {compared(time, energy, _blocks(before.candidate))} at full speed, {memory}"


def _blocks(candidate: Candidate) -> str:
    return blocks_words(candidate.workload.parallelism.placed)


def fitting_split(predictor: LayoutPredictor, short: Candidate, trainer: ObeyingTrainer) -> Candidate | None:
    """Return a layout that does not fit into memory with blocks on its stages that do; None where none are found."""
    gpu_gib = short.workload.gpu.memory_gib
    limits_gib = gpu_gib, gpu_gib * (1 + TIGHT)  # the latter is not refused either
    options = itertools.chain.from_iterable(searched_splits(predictor, short, limit) for limit in limits_gib)
    return next((option for option in options if _may_split(option.workload, trainer)), None)


def _may_split(workload: Workload, trainer: ObeyingTrainer) -> bool:
    """Return whether what trains a workload runs it with the blocks on stages that it has."""
    return not engine_refusal(workload) if trainer.overlaps else splits(workload)


def better_split(
    predictor: LayoutPredictor, prediction: LayoutPrediction, trainer: ObeyingTrainer
) -> LayoutPrediction | Unsplit:
    """Return the prediction of a layout with other blocks on its stages, or why it keeps those that it has.

    The others fit into memory as well, and what trains can be told of them.
    """
    usual = prediction.candidate
    limit_gib = max(usual.memory.total_gib, FULL_SHARE * usual.workload.gpu.memory_gib)
    for option in searched_splits(predictor, usual, limit_gib):
        if not _may_split(option.workload, trainer):
            return Unsplit.NO_SETTING
        other = predictor.predict(option, predictor.bound(option.workload))
        if is_worth(prediction.plans, other.plans):
            return other
    return Unsplit.NOT_BETTER


def is_worth(plans: Sequence[LayoutCost], others: Sequence[LayoutCost]) -> bool:
    """Return whether one of other plans takes less time, or less energy in the same, by more than a little."""
    least_s = min(plan.time_s for plan in plans)

    def least_j(costs: Sequence[LayoutCost]) -> float:
        return min(
            (option.energy_j for option in costs if option.time_s <= least_s * (1 + AS_FAST)), default=float("inf")
        )

    faster = min(plan.time_s for plan in others) < least_s * (1 - AS_FAST)
    return faster or least_j(others) < least_j(plans) * (1 - AS_FAST)


def searched_splits(predictor: LayoutPredictor, usual: Candidate, limit_gib: float) -> Iterator[Candidate]:
    """Yield a layout with other blocks on its stages: what takes least time, then what is frugal with more of it.

    Args:
        predictor: of its training.
        usual: the layout, with the blocks that what is yielded differs from.
        limit_gib: memory of a GPU that they need at most.
    """
    if usual.workload.parallelism.pp == 1:
        return
    costs = split_costs(predictor, usual.workload, limit_gib)
    least, seen = costs.least_s(), {usual.workload.parallelism.placed}
    if least is None:
        return
    for slower in SLOWER:
        frugal = least_split(costs.frugal_j(slower * least[0], slower * least[1]), np.add)
        if frugal is None:
            continue
        option = _split(usual, _in_chunks(predictor, usual.workload, frugal[1]))
        if slower == SLOWER[0]:
            starts = [start for start in (option, usual) if start.memory.total_gib <= limit_gib]
            if starts:
                fastest = min(starts, key=lambda start: predictor.fastest_s(start.workload))
                option = _nearby(predictor, fastest, costs, limit_gib)
        placed = option.workload.parallelism.placed
        if placed not in seen and option.memory.total_gib <= limit_gib:
            seen.add(placed)
            yield option


def _split(usual: Candidate, workload: Workload) -> Candidate:
    """Return a layout with the blocks on its stages that a workload has."""
    layout = replace(usual.layout, layers_per_stage=workload.parallelism.placed)
    return Candidate(layout=layout, workload=workload, memory=estimate_memory(workload))


def _nearby(predictor: LayoutPredictor, start: Candidate, costs: SplitCosts, limit_gib: float) -> Candidate:
    """Return the fastest split that moving single blocks reaches, first away from the stages that take longest."""
    best, best_s, stages = start, predictor.fastest_s(start.workload), range(start.workload.parallelism.pp)
    left = min(MOST_TRIED, MOST_TIMED // predictor.instructions_of(start.workload))
    tried, moved = {start.workload.parallelism.placed}, True
    while moved:
        moved, split = False, best.workload.parallelism.split
        ends_s = [costs.passes_s[stage, sum(split[:stage]), split[stage]] for stage in stages]
        slowest = sorted(stages, key=lambda stage: -ends_s[stage])
        for giver, taker in itertools.product(slowest, reversed(slowest)):
            workload = _moved(best.workload, giver, taker)
            if workload is None or workload.parallelism.placed in tried:
                continue
            if left == 0:
                return best
            left -= 1
            tried.add(workload.parallelism.placed)
            time_s = predictor.fastest_s(workload)
            if time_s < best_s * (1 - ROUNDING):
                option = _split(best, workload)
                if option.memory.total_gib <= limit_gib:
                    best, best_s, moved = option, time_s, True
                    break
    return best


def _moved(workload: Workload, giver: int, taker: int) -> Workload | None:
    """Return a workload with a block of a stage's largest chunk in the smallest of another, or of its own."""
    degrees, chunks, shapes = workload.parallelism, workload.chunks, laid_out_shapes(workload)
    blocks = {place: shape.layers for place, shape in shapes.items()}
    largest = max(((giver, chunk) for chunk in range(chunks)), key=lambda place: blocks[place])
    smallest = min(((taker, chunk) for chunk in reversed(range(chunks))), key=lambda place: blocks[place])
    if largest == smallest or blocks[largest] == 1:
        return None
    blocks[largest] -= 1
    blocks[smallest] += 1
    line = sorted(blocks, key=lambda place: place_in_line(place[0], place[1], degrees.pp, folded=degrees.folded))
    return with_blocks(workload, as_stages(degrees, tuple(blocks[place] for place in line), chunks))


def _in_chunks(predictor: LayoutPredictor, workload: Workload, split: tuple[int, ...]) -> Workload:
    """Return a workload with so many blocks on its stages, in the chunks that take the least time of those tried."""
    degrees, chunks = workload.parallelism, workload.chunks
    if chunks == 1:
        return with_blocks(workload, split)

    def placed(*, later: bool) -> Workload:
        """With what is left over of each stage in its later chunks, or in its earlier ones."""
        line = []
        for chunk, place in itertools.product(range(chunks), range(degrees.pp)):
            each, more = divmod(split[degrees.pp - 1 - place if degrees.folded and chunk % 2 else place], chunks)
            line.append(each + (chunk >= chunks - more if later else chunk < more))
        return with_blocks(workload, as_stages(degrees, tuple(line), chunks))

    return min(placed(later=True), placed(later=False), key=predictor.fastest_s)
