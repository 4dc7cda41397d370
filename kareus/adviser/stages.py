"""Blocks on each stage of a pipeline, searched for the time and the energy of an iteration within the memory of GPUs.

A stage costs, by the predictor's prices, a sum over its blocks and over what lies outside of them (embedding, head). As
in `bounds` it waits for the stages before it, which depends on how many blocks these have. So the split whose bound is
least is found over prefixes, the first so many blocks on the first so many stages: exactly (Bellman's principle), in
stages x blocks x blocks steps. The chunks of a stage get as many blocks each; which of them get what is left over is
tried. What is found is a proposal: the predictor itself says what it is worth.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from kareus.adviser.feasible import Candidate
from kareus.adviser.layouts import layout_of
from kareus.adviser.order import FULL_SHARE, splits
from kareus.adviser.predictions import LayoutCost, LayoutPrediction, LayoutPredictor
from kareus.adviser.prices import FASTEST, PRICES_W, InstructionPrices, Priced
from kareus.arrays import Array, Indices
from kareus.graph.instruction import place_in_line
from kareus.graph.records import MEETING, Direction
from kareus.pareto import AS_FAST, ROUNDING
from kareus.pipeline.transfers import transfers_s
from kareus.plans.units import compared, less
from kareus.profile.programs import StageShape, laid_out_shapes
from kareus.runtime.architecture import engine_refusal
from kareus.software.trainers import ObeyingTrainer, trainer_of
from kareus.workload.config import Workload
from kareus.workload.memory import (
    TIGHT,
    MemoryFit,
    check_memory,
    estimate_memory,
    fit_of,
    stage_memory,
    tightness,
)
from kareus.workload.slices import cut
from kareus.workload.split import as_stages, blocks_words

SLOWER = (1.0, 1.03, 1.1)
"""Times for which the most frugal split is sought, relative to the least."""
MOST_TRIED = 40
"""Splits near the proposed one that are timed: of instructions, which what is proposed knows as the mean of many."""
MOST_TIMED = 200_000
"""Instructions of all iterations that are timed so."""


def with_searched_split(workload: Workload) -> tuple[Workload, str]:
    """Return a resolved workload with the blocks on its stages that suit its trainer best, and in words what they gain.

    That is the workload itself where no others gain more than repeated measurements differ by. Where it does not fit
    into memory, these are blocks with which it does.

    Raises:
        RefusedWorkloadError: it does not fit, and no blocks on its stages are found with which it does.
    """
    trainer = trainer_of(workload.software.name)
    with threadpool_limits(limits=1):
        predictor = LayoutPredictor(workload, InstructionPrices(workload, trainer=trainer), trainer)
        candidate = Candidate(layout=layout_of(workload), workload=workload, memory=estimate_memory(workload))
        if fit_of(workload, candidate.memory) is MemoryFit.REFUSED:
            return _fitting_split(predictor, candidate, trainer)
        usual = predictor.predict(candidate, predictor.bound(workload))
        other = better_split(predictor, usual, trainer)
        tried = next(searched_splits(predictor, workload, _limit_gib(candidate)), None) if other is None else None
    usual_words = blocks_words(workload.parallelism.placed)
    if tried is not None and not _may_split(tried, trainer):
        return workload, f"blocks on stages: {usual_words}; {workload.software.name} takes no others here"
    if other is None:
        return workload, f"blocks on stages: {usual_words}, which others are not better than by {100 * AS_FAST:g} %"
    before, after, proposed = usual.plans[0], other.plans[0], other.candidate
    time = less(100 * (1 - after.time_s / before.time_s), "time")
    energy = less(100 * (1 - after.energy_j / before.energy_j), "energy")
    return proposed.workload, (
        f"blocks on stages: {blocks_words(proposed.workload.parallelism.placed)}; "
        f"{compared(time, energy, usual_words)} at full speed, "
        f"{proposed.memory.total_gib:.1f} GiB instead of {candidate.memory.total_gib:.1f}"
    )


def _fitting_split(predictor: LayoutPredictor, short: Candidate, trainer: ObeyingTrainer) -> tuple[Workload, str]:
    """Return what `with_searched_split` does, of a layout whose usual blocks on stages do not fit into memory."""
    gpu_gib = short.workload.gpu.memory_gib
    limits_gib = gpu_gib, gpu_gib * (1 + TIGHT)  # the latter is not refused either
    for workload in itertools.chain(*(searched_splits(predictor, short.workload, limit) for limit in limits_gib)):
        if _may_split(workload, trainer):
            memory = estimate_memory(workload)
            return workload, (
                f"blocks on stages: {blocks_words(workload.parallelism.placed)}, {memory.total_gib:.1f} of "
                f"{gpu_gib:.1f} GiB{tightness(workload, memory)}; {blocks_words(short.workload.parallelism.placed)} "
                f"would need {short.memory.total_gib:.1f}"
            )
    check_memory(short.workload, short.memory)
    raise AssertionError("what is searched here does not fit")


def _may_split(workload: Workload, trainer: ObeyingTrainer) -> bool:
    """Return whether what trains a workload runs it with the blocks on stages that it has."""
    return not engine_refusal(workload) if trainer.overlaps else splits(workload)


def better_split(
    predictor: LayoutPredictor, prediction: LayoutPrediction, trainer: ObeyingTrainer
) -> LayoutPrediction | None:
    """Return the prediction of a layout with other blocks on its stages; None where none is worth it.

    These fit into memory as well, and what trains can be told of them.
    """
    candidate = prediction.candidate
    for workload in searched_splits(predictor, candidate.workload, _limit_gib(candidate)):
        if not _may_split(workload, trainer):
            return None
        layout = replace(candidate.layout, layers_per_stage=workload.parallelism.placed)
        option = Candidate(layout=layout, workload=workload, memory=estimate_memory(workload))
        other = predictor.predict(option, predictor.bound(workload))
        if is_worth(prediction.plans, other.plans):
            return other
    return None


def _limit_gib(candidate: Candidate) -> float:
    """Memory that other blocks on the stages of a layout may need."""
    return max(candidate.memory.total_gib, FULL_SHARE * candidate.workload.gpu.memory_gib)


def is_worth(plans: Sequence[LayoutCost], others: Sequence[LayoutCost]) -> bool:
    """Return whether one of other plans takes less time, or less energy in the same, by more than a little."""
    least_s = min(plan.time_s for plan in plans)

    def least_j(costs: Sequence[LayoutCost]) -> float:
        return min(
            (option.energy_j for option in costs if option.time_s <= least_s * (1 + AS_FAST)), default=float("inf")
        )

    faster = min(plan.time_s for plan in others) < least_s * (1 - AS_FAST)
    return faster or least_j(others) < least_j(plans) * (1 - AS_FAST)


def searched_splits(predictor: LayoutPredictor, workload: Workload, limit_gib: float) -> Iterator[Workload]:
    """Yield a workload with other blocks on its stages: what takes least time, then what is frugal with more of it.

    Args:
        predictor: of its training.
        workload: resolved; what is yielded differs from it, and from one another.
        limit_gib: memory of a GPU that they need at most.
    """
    if workload.parallelism.pp == 1:
        return
    costs = split_costs(predictor, workload, limit_gib)
    least, seen = costs.least_s(), {workload.parallelism.placed}
    if least is None:
        return
    for slower in SLOWER:
        frugal = least_split(costs.frugal_j(slower * least[0], slower * least[1]), np.add)
        if frugal is None:
            continue
        proposed = _in_chunks(predictor, workload, frugal[1])
        if slower == SLOWER[0]:
            starts = [each for each in (proposed, workload) if estimate_memory(each).total_gib <= limit_gib]
            if starts:
                proposed = _nearby(predictor, min(starts, key=predictor.fastest_s), costs, limit_gib)
        if proposed.parallelism.placed not in seen and estimate_memory(proposed).total_gib <= limit_gib:
            seen.add(proposed.parallelism.placed)
            yield proposed


def _nearby(predictor: LayoutPredictor, start: Workload, costs: "SplitCosts", limit_gib: float) -> Workload:
    """Return the fastest split that moving single blocks reaches, first away from the stages that take longest."""
    best, best_s, stages = start, predictor.fastest_s(start), range(start.parallelism.pp)
    left = min(MOST_TRIED, MOST_TIMED // predictor.instructions_of(start))
    tried, moved = {start.parallelism.placed}, True
    while moved:
        moved, split = False, best.parallelism.split
        ends_s = [costs.passes_s[stage, sum(split[:stage]), split[stage]] for stage in stages]
        slowest = sorted(stages, key=lambda stage: -ends_s[stage])
        for giver, taker in itertools.product(slowest, reversed(slowest)):
            option = _moved(best, giver, taker)
            if option is None or option.parallelism.placed in tried:
                continue
            if left == 0:
                return best
            left -= 1
            tried.add(option.parallelism.placed)
            time_s = predictor.fastest_s(option)
            if time_s < best_s * (1 - ROUNDING) and estimate_memory(option).total_gib <= limit_gib:
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
    return _with_blocks(workload, as_stages(degrees, tuple(blocks[place] for place in line), chunks))


def least_split(costs: Array, join: np.ufunc) -> tuple[float, tuple[int, ...]] | None:
    """Return the least cost of all splits of blocks over stages, and the split that has it; None if none is finite.

    Args:
        costs: of each stage by the blocks before it and its own; [stages, blocks + 1, most blocks of a stage + 1].
        join: `numpy.maximum` where the stage decides that costs most, `numpy.add` where all count.

    Examples:
        >>> blocks = np.zeros((7, 1)) + np.arange(7.0)  # whatever the blocks before
        >>> least_split(np.array([blocks, blocks + 2]), np.maximum)  # the second stage has the head
        (4.0, (4, 2))
    """
    stages, every, most = costs.shape
    least = np.full((stages + 1, every), np.inf)
    taken = np.zeros((stages, every), dtype=np.int64)
    least[0, 0] = -np.inf if join is np.maximum else 0.0
    for stage in range(stages):
        for blocks in range(1, min(most, every)):
            so_far = least[stage, : every - blocks]
            joined = np.where(so_far < np.inf, join(so_far, costs[stage, : every - blocks, blocks]), np.inf)
            better = joined < least[stage + 1, blocks:]
            least[stage + 1, blocks:][better] = joined[better]
            taken[stage, blocks:][better] = blocks
    left = every - 1
    if not np.isfinite(least[stages, left]):
        return None
    split: list[int] = []
    for stage in reversed(range(stages)):
        split.insert(0, int(taken[stage, left]))
        left -= split[0]
    return float(least[stages, -1]), tuple(split)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCosts:
    """What stages cost by the blocks before them and their own; an iteration takes the longest passes and updates."""

    passes_s: Array
    """Least time until a stage has its gradients; [stages, blocks before, blocks], infinite where memory is short."""
    update_s: Array
    """Least time of its update after that, which begins on all stages together; [stages, 1, blocks]."""
    dual_j: Array
    """Least effective energy of all that it does plus price of its time; [stages, blocks before, blocks, prices]."""
    idle_s: Array
    """Least time in which it waits; [stages, blocks before, blocks]."""

    def least_s(self) -> tuple[float, float] | None:
        """Return the longest passes and the longest update of the split that takes least time; None if none fits."""
        least, unlimited = None, least_split(self.passes_s, np.maximum)
        if unlimited is None:
            return None
        for update_s in np.unique(self.update_s):
            if least is not None and unlimited[0] + update_s >= sum(least):
                break
            limited = least_split(np.where(self.update_s <= update_s, self.passes_s, np.inf), np.maximum)
            if limited is not None and (least is None or limited[0] + update_s < sum(least)):
                least = limited[0], float(update_s)
        return least

    def frugal_j(self, passes_s: float, update_s: float) -> Array:
        """Least effective energy of each stage in an iteration of so long, infinite where it takes longer."""
        left_s = (passes_s + update_s - self.idle_s)[..., None]
        least_j: Array = (self.dual_j[..., :FASTEST] - PRICES_W[:FASTEST] * left_s).max(axis=-1)
        keeps = (self.passes_s <= passes_s * (1 + ROUNDING)) & (self.update_s <= update_s * (1 + ROUNDING))
        return np.where(keeps, least_j, np.inf)


def split_costs(predictor: LayoutPredictor, workload: Workload, limit_gib: float) -> SplitCosts:
    """Price the stages of a workload by the blocks that they might have; those beyond the memory take for ever."""
    degrees, layers, chunks = workload.parallelism, workload.model.num_layers, workload.chunks
    parts = _parts_of(predictor, workload)
    most = parts.most
    before, blocks = np.arange(layers + 1), np.arange(most + 1)
    dense_before = np.append(0, np.cumsum(np.isin(before[:-1], workload.model.dense_layers)))
    dense = dense_before[np.minimum(before[:, None] + blocks, layers)] - dense_before[:, None]
    passes = parts.outside[:, None, None] + parts.block * blocks[:, None, None] + parts.dense * dense[..., None, None]
    passes = workload.num_microbatches * passes  # [stages, blocks before, blocks, seconds and joules, prices]
    update, reduction = (
        fixed[:, None, None] + by_block[:, None, None] * blocks[:, None, None]
        for fixed, by_block in ((parts.update, parts.update_block), (parts.reduction, parts.reduction_block))
    )
    work = passes + update + reduction
    fitting = np.array([_most_blocks(workload, stage, most, limit_gib) for stage in range(degrees.pp)])
    fits = (blocks >= chunks) & (blocks <= fitting[:, None, None])
    waits_s, behind_s = _idle_s(workload, parts, dense_before)
    reduction_s = reduction[..., 0, FASTEST]
    after_s = np.maximum(reduction_s, behind_s + reduction_s[0, 0, max(1, layers // degrees.pp)])
    return SplitCosts(
        passes_s=np.where(fits, passes[..., 0, FASTEST] + waits_s + after_s, np.inf),
        update_s=update[..., 0, FASTEST],
        dual_j=work[..., 1, :] + PRICES_W * work[..., 0, :],
        idle_s=waits_s + np.maximum(behind_s - reduction_s, 0.0),
    )


def _idle_s(workload: Workload, parts: "_StageParts", dense_before: Indices) -> tuple[Array, Array]:
    """Least time in which stages wait until their passes end, and in which the last gradient goes on from there.

    Of 1F1B, and nearly of others; both [stages, blocks before, blocks]. A stage waits until the first microbatch has
    come, until its gradient has been through all later stages, but for the forwards that it does meanwhile, and once
    more at the end, but for the backwards.
    """
    stages, layers, chunks = workload.parallelism.pp, workload.model.num_layers, workload.chunks
    before = np.arange(layers + 1)[:, None]
    after = np.minimum(before + np.arange(parts.most + 1), layers)

    def passed_s(upto: Indices) -> Array:
        """Forward and backward of the first chunks up to so many blocks, without what is outside of blocks."""
        return parts.block_s * upto[..., None] / chunks + parts.dense_s * dense_before[upto][..., None]

    outside_s = np.cumsum(np.vstack(([0.0, 0.0], parts.outside_s)), axis=0)[:, None, None]  # of the stages before
    ahead_s = outside_s[:-1] + passed_s(before)
    stage_s = passed_s(after) - passed_s(before) + parts.outside_s[:, None, None]
    later_s = (outside_s[-1] - outside_s[1:] + passed_s(np.full_like(after, layers)) - passed_s(after)).sum(axis=-1)
    ahead = np.minimum(stages - 1 - np.arange(stages), workload.num_microbatches - 1)[:, None, None, None]
    stalls_s = np.maximum(later_s[..., None] - ahead * stage_s, 0.0)
    if workload.split_backward:  # weight gradients fill the time in which others are on their way
        waits_s = ahead_s[..., 0] + (0.0 if workload.parallelism.folded else stalls_s[..., 0])
        return waits_s, np.zeros_like(waits_s)
    return ahead_s[..., 0] + stalls_s.sum(axis=-1), ahead_s[..., 1] + np.zeros_like(stalls_s[..., 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageParts:
    """What the stages of a layout cost: what is outside of blocks, and what each block adds."""

    outside: Array
    """Seconds and effective joules of a microbatch without its blocks; [stages, 2, prices]."""
    block: Array
    """Of one block; [2, prices]."""
    dense: Array
    """What a block without experts takes more, where others have them; [2, prices]."""
    update: Array
    """Of the update after the reduction of gradients, without its blocks; [stages, 2, prices]."""
    update_block: Array
    """Of one block of it; likewise."""
    reduction: Array
    """Of the reduction of gradients, as of the update."""
    reduction_block: Array
    """Of one block of it; likewise."""
    outside_s: Array
    """Least time of the first forward and the last backward without blocks, and of sending on; [stages, 2]."""
    block_s: Array
    """Least time of a forward and a backward of a block; [2]."""
    dense_s: Array
    """What a block without experts takes more; [2]."""
    most: int
    """Most blocks of a stage that are tried."""


def _parts_of(predictor: LayoutPredictor, workload: Workload) -> _StageParts:
    """Return the parts of what stages cost, from instructions of about as many blocks as chunks have, and one more.

    Where all of a few blocks is computed, more of them are as many steps more (`gpu_model.model.Sums`).
    """
    degrees, chunks, shapes = workload.parallelism, workload.chunks, laid_out_shapes(workload)
    usual = max(1, workload.model.num_layers // (degrees.pp * chunks))

    def priced(stage: int, shape: StageShape) -> tuple[Array, Array]:
        """All passes of a microbatch, and the least time of the first two."""
        passes = list(predictor.passes(workload, stage, shape).values())
        total: Array = np.sum([_stacked(each) for each in passes], axis=0)
        return total, np.array([each.time_s[FASTEST] for each in passes[:2]])

    middle = StageShape(layers=usual, first=False, last=False)
    dense_blocks = (0, 0, min(1, len(workload.model.dense_layers)))
    few, more, less = (
        priced(degrees.pp - 1, replace(middle, layers=usual + n, dense=dense))
        for n, dense in zip((0, 1, 0), dense_blocks, strict=True)
    )
    block, block_s = more[0] - few[0], more[1] - few[1]
    outside = np.zeros((degrees.pp, *block.shape))
    first_s = np.zeros((degrees.pp, 2))
    for (stage, chunk), shape in shapes.items():
        cost, passes_s = priced(stage, replace(shape, layers=usual, dense=0))
        outside[stage] += cost - usual * block
        if chunk == 0:
            first_s[stage] = passes_s - usual * block_s
    few_updates, more_updates = (
        predictor.updates(_with_blocks(workload, (n * chunks,) * degrees.pp)) for n in (usual, usual + 1)
    )

    def updated(*directions: Direction) -> tuple[Array, Array]:
        """What some of the instructions of updates cost without blocks, and with each of them."""
        fewer, more = (
            np.array(
                [sum((_stacked(of[step]) for step in directions if step in of), np.zeros_like(block)) for of in each]
            )
            for each in (few_updates, more_updates)
        )
        by_block = (more - fewer) / chunks
        return fewer - usual * chunks * by_block, by_block

    update, update_block = updated(*MEETING)
    reduction, reduction_block = updated(Direction.GRADIENT_REDUCTION)
    boundaries_s = np.array([*transfers_s(cut(workload, "pipeline")), 0.0])[: degrees.pp]
    return _StageParts(
        outside=outside,
        block=block,
        dense=less[0] - few[0],
        update=update,
        update_block=update_block,
        reduction=reduction,
        reduction_block=reduction_block,
        outside_s=first_s + boundaries_s[:, None],
        block_s=block_s,
        dense_s=less[1] - few[1],
        most=min(
            workload.model.num_layers - (degrees.pp - 1) * chunks, 2 * -(-workload.model.num_layers // degrees.pp)
        ),
    )


def _stacked(priced: Priced) -> Array:
    return np.array([priced.time_s, priced.effective_j])


def _with_blocks(workload: Workload, placed: tuple[int, ...]) -> Workload:
    return replace(workload, parallelism=replace(workload.parallelism, layers_per_stage=placed))


def _most_blocks(workload: Workload, stage: int, most: int, limit_gib: float) -> int:
    """Return the most blocks of a stage that fit the memory, none if one does not."""

    def total_gib(blocks: int) -> float:
        return stage_memory(_with_blocks(workload, (blocks,) * workload.parallelism.pp), stage).total_gib

    return bisect.bisect_right(range(1, most + 1), limit_gib, key=total_gib)


def _in_chunks(predictor: LayoutPredictor, workload: Workload, split: tuple[int, ...]) -> Workload:
    """Return a workload with so many blocks on its stages, in the chunks that take the least time of those tried."""
    degrees, chunks = workload.parallelism, workload.chunks
    if chunks == 1:
        return _with_blocks(workload, split)

    def placed(*, later: bool) -> Workload:
        """With what is left over of each stage in its later chunks, or in its earlier ones."""
        line = []
        for chunk, place in itertools.product(range(chunks), range(degrees.pp)):
            each, more = divmod(split[degrees.pp - 1 - place if degrees.folded and chunk % 2 else place], chunks)
            line.append(each + (chunk >= chunks - more if later else chunk < more))
        return _with_blocks(workload, as_stages(degrees, tuple(line), chunks))

    return min(placed(later=True), placed(later=False), key=predictor.fastest_s)
