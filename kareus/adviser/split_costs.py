"""Costs of the stages of a pipeline by the blocks that they might have, and the split of blocks that costs least.

A stage costs, by the predictor's prices, a sum over its blocks and over what lies outside of them (embedding, head). As
in `bounds` it waits for the stages before it, which depends on how many blocks these have. So the split whose bound is
least is found over prefixes, the first so many blocks on the first so many stages: exactly (Bellman's principle), in
stages x blocks x blocks steps.
"""

import bisect
from dataclasses import dataclass, replace

import numpy as np

from kareus.adviser.predictions import LayoutPredictor
from kareus.adviser.prices import FASTEST, PRICES_W, Priced
from kareus.arrays import Array, Indices
from kareus.graph.records import MEETING, Direction
from kareus.pareto import ROUNDING
from kareus.pipeline.transfers import transfers_s
from kareus.profile.programs import StageShape, laid_out_shapes
from kareus.workload.config import Workload
from kareus.workload.memory import SharedMemory, stage_memory
from kareus.workload.slices import cut


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
    shared = SharedMemory()
    fitting = np.array([_most_blocks(workload, stage, most, limit_gib, shared) for stage in range(degrees.pp)])
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
    layers, stages, chunks = workload.model.num_layers, workload.parallelism.pp, workload.chunks
    usual = max(1, layers // (stages * chunks))
    middle = StageShape(layers=usual, first=False, last=False)
    dense_blocks = (0, 0, min(1, len(workload.model.dense_layers)))
    (few, few_s), (more, more_s), (one_dense, one_dense_s) = (
        _microbatch(predictor, workload, stages - 1, replace(middle, layers=usual + n, dense=dense))
        for n, dense in zip((0, 1, 0), dense_blocks, strict=True)
    )
    block, block_s = more - few, more_s - few_s
    outside, first_s = np.zeros((stages, *block.shape)), np.zeros((stages, 2))
    for (stage, chunk), shape in laid_out_shapes(workload).items():
        cost, passes_s = _microbatch(predictor, workload, stage, replace(shape, layers=usual, dense=0))
        outside[stage] += cost - usual * block
        if chunk == 0:
            first_s[stage] = passes_s - usual * block_s
    few_updates, more_updates = (
        predictor.updates(with_blocks(workload, (n * chunks,) * stages)) for n in (usual, usual + 1)
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
    boundaries_s = np.array([*transfers_s(cut(workload, "pipeline")), 0.0])[:stages]
    return _StageParts(
        outside=outside, block=block, dense=one_dense - few, update=update, update_block=update_block,
        reduction=reduction, reduction_block=reduction_block, outside_s=first_s + boundaries_s[:, None],
        block_s=block_s, dense_s=one_dense_s - few_s,
        most=min(layers - (stages - 1) * chunks, 2 * -(-layers // stages)),
    )  # fmt: skip


def _microbatch(predictor: LayoutPredictor, workload: Workload, stage: int, shape: StageShape) -> tuple[Array, Array]:
    """Return the time and effective energy of all passes of a microbatch, and the least time of the first two."""
    passes = list(predictor.passes(workload, stage, shape).values())
    total: Array = np.sum([_stacked(each) for each in passes], axis=0)
    return total, np.array([each.time_s[FASTEST] for each in passes[:2]])


def _stacked(priced: Priced) -> Array:
    return np.array([priced.time_s, priced.effective_j])


def with_blocks(workload: Workload, placed: tuple[int, ...]) -> Workload:
    """Return a workload with these blocks on its stages or chunks."""
    return replace(workload, parallelism=replace(workload.parallelism, layers_per_stage=placed))


def _most_blocks(workload: Workload, stage: int, most: int, limit_gib: float, shared: SharedMemory) -> int:
    """Return the most blocks of a stage that fit the memory, none if one does not."""

    def total_gib(blocks: int) -> float:
        return stage_memory(with_blocks(workload, (blocks,) * workload.parallelism.pp), stage, shared).total_gib

    return bisect.bisect_right(range(1, most + 1), limit_gib, key=total_gib)
