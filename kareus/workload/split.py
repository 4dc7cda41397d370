"""Splitting a model's blocks over pipeline stages so that the slowest stage does as little as possible.

Work is counted in FLOPs, as if every operation ran equally fast: good enough to place blocks, and independent of the
GPU. The embedding is a look-up without FLOPs, so only the LM head weighs on top of the blocks, on the last stage.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from kareus.errors import RefusedWorkloadError
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.parameters import all_used_matrices, used_by_mtp
from kareus.profile.programs import chunk_shapes
from kareus.workload.config import Workload

NEARLY = 1e-9
"""Blocks that rounding may add to a share of the work."""


def layers_per_stage(workload: Workload) -> tuple[int, ...]:
    """Blocks on each stage, or on each chunk: as configured, else the model's known split for that `pp`, else balanced.

    Blocks on each chunk that are those of equal chunks are returned as blocks on each stage.

    Raises:
        RefusedWorkloadError: the split does not have one entry of at least 1 for each stage or chunk, has another sum,
            or a stage cannot be cut into equal chunks.
    """
    given, chunks, parallelism = workload.parallelism.layers_per_stage, workload.chunks, workload.parallelism
    if given is None:
        return default_split(workload)
    if chunks > 1 and len(given) == parallelism.pp * chunks:
        placed = _checked("parallelism.layers_per_stage", given, workload.model, parallelism, chunks)
        return as_stages(parallelism, placed, chunks)
    split = _checked("parallelism.layers_per_stage", given, workload.model, workload.parallelism, of_stage=chunks)
    is_uneven_v = workload.parallelism.folded and any(layers % chunks for layers in split)
    if is_uneven_v or not _cuts_into(split, chunks):
        ends = "" if parallelism.folded else ", first and last one less where embedding or head takes its place"
        such = f", such as {list(cut)}" if min(cut := _cut_up(split, chunks, folded=parallelism.folded)) else ""
        raise RefusedWorkloadError(
            f"parallelism.layers_per_stage={list(split)}: every stage must have a multiple of pipeline.chunks "
            f"({chunks}) blocks{ends}; give the blocks of each of the {parallelism.pp * chunks} chunks as a microbatch "
            f"passes them{such}, or null to have a split computed."
        )
    return split


def _cut_up(split: tuple[int, ...], chunks: int, *, folded: bool) -> tuple[int, ...]:
    """Return blocks on each chunk, in the order in which they are passed, as equal as each stage's can be.

    Examples:
        >>> _cut_up((17, 15), 2, folded=True), _cut_up((17, 15), 2, folded=False)
        ((9, 8, 7, 8), (9, 8, 8, 7))
    """
    passed = []
    for chunk in range(chunks):
        blocks = [layers // chunks + (chunk < layers % chunks) for layers in split]
        passed += blocks[::-1] if folded and chunk % 2 else blocks
    return tuple(passed)


def as_stages(parallelism: Parallelism, placed: tuple[int, ...], chunks: int) -> tuple[int, ...]:
    """Return blocks on each stage where blocks on each chunk are those of equal chunks, else the latter."""
    split = parallelism.summed(placed, parallelism.pp, folded=parallelism.folded)
    if not _cuts_into(split, chunks) or (parallelism.folded and any(layers % chunks for layers in split)):
        return placed
    stages, folded = parallelism.pp, parallelism.folded
    whole, cut = (chunk_shapes(blocks, chunks, folded=folded, stages=stages) for blocks in (split, placed))
    return split if whole == cut else placed


def default_split(workload: Workload) -> tuple[int, ...]:
    """Blocks on each stage where the configuration names none.

    The model's published split for that `pp`, where chunks of it are equal. Else equal chunks as the software balances
    them by work; where their number does not divide the blocks, as even as embedding and head as a block each make
    them, and in a V as even as single chunks can be.

    Raises:
        RefusedWorkloadError: as `layers_per_stage`.
    """
    model, parallelism, chunks = workload.model, workload.parallelism, workload.chunks
    layers, stages, folded = model.num_layers, parallelism.pp, parallelism.folded
    if stages > layers:
        raise RefusedWorkloadError(
            f"parallelism.pp={stages}: must be at most model.num_layers ({layers}), a block each."
        )
    published = None if folded else model.layers_per_stage.get(stages)
    if published is not None:
        split = _checked(f"model.layers_per_stage.{stages}", published, model, parallelism)
        if not any(blocks % chunks for blocks in split):
            return split
    head = head_flops(model) / block_flops(model, workload.sequence_length, recomputation=workload.recomputation)
    if layers % chunks == 0 and layers >= stages * chunks:
        pieces = layers // chunks
        if workload.software.fills_stages and not folded:
            return tuple(chunks * n for n in filled_split(pieces, stages, head / chunks))
        return tuple(chunks * n for n in balanced_split(pieces, stages, head / chunks, parallelism.head_stage))
    if layers >= stages * chunks:
        if folded:
            return as_stages(parallelism, balanced_split(layers, stages * chunks, head), chunks)
        if even := even_split(layers, stages, chunks):
            return even
    raise RefusedWorkloadError(
        f"pipeline.chunks={chunks}: model.num_layers ({layers}) must be a multiple of it, with a block for each chunk "
        f"of each stage (parallelism.pp={stages}), or with embedding and head as one each; use another number of "
        "chunks."
    )


@lru_cache(maxsize=1024)  # layouts that are compared ask for few
def balanced_split(num_layers: int, stages: int, head_blocks: float, head_stage: int | None = None) -> tuple[int, ...]:
    """Split equal blocks so that the largest stage is as small as possible, then the second largest, and so on.

    Every stage starts with one block; each further block goes where the result is smallest. Blocks being equal, that
    is exact: were the largest stage avoidable, its last block would have fitted better elsewhere. Of equal stages the
    later takes the block, since the earlier holds more microbatches in memory.

    Args:
        num_layers: blocks to place.
        stages: pipeline stages, at most `num_layers`.
        head_blocks: work of the LM head, in blocks.
        head_stage: stage that has it; the last one if None.
    """
    layers, last = [1] * stages, stages - 1 if head_stage is None else head_stage
    queue = [(2.0 + (head_blocks if stage == last else 0.0), -stage) for stage in range(stages)]
    heapq.heapify(queue)
    for _ in range(num_layers - stages):
        work, negative_stage = queue[0]
        layers[-negative_stage] += 1
        heapq.heapreplace(queue, (work + 1, negative_stage))
    return tuple(layers)


def even_split(num_layers: int, stages: int, chunks: int) -> tuple[int, ...] | None:
    """Split blocks in equal chunks, else in chunks that are with embedding and head as a block each; None: neither.

    Embedding and head then take the place of a block of the first and of the last chunk (Megatron Core:
    `account_for_embedding_in_pipeline_split`, `account_for_loss_in_pipeline_split`); the chunk may have no other.

    Examples:
        >>> even_split(32, 4, 2), even_split(126, 8, 8), even_split(30, 4, 1), even_split(31, 4, 1)
        ((8, 8, 8, 8), (15, 16, 16, 16, 16, 16, 16, 15), (7, 8, 8, 7), None)
    """
    pieces = stages * chunks
    if num_layers % pieces == 0:
        return (num_layers // stages,) * stages
    whole, rest = divmod(num_layers + 2, stages)
    if rest or whole % chunks or whole == 1 or stages == 1:
        return None
    return (whole - 1, *[whole] * (stages - 2), whole - 1)


def filled_split(num_layers: int, stages: int, head_blocks: float) -> tuple[int, ...]:
    """Fill one stage after the other with equal blocks until the stages up to it have their share of all work.

    As trainers do that walk through a model's blocks once: early stages get more than late ones. Every stage gets a
    block, though such trainers leave the last ones empty where the head is heavy.

    Args:
        num_layers: blocks to place.
        stages: pipeline stages, at most `num_layers`.
        head_blocks: work of the LM head, in blocks; it is on the last stage.

    Examples:
        >>> filled_split(28, 16, 4)
        (2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1)
    """
    share, layers, placed = (num_layers + head_blocks) / stages, [], 0
    for stage in range(1, stages):
        upto = min(max(math.ceil(share * stage - NEARLY), placed + 1), num_layers - (stages - stage))
        layers.append(upto - placed)
        placed = upto
    return (*layers, num_layers - placed)


def block_flops(model: Model, sequence_length: int, *, recomputation: Recomputation) -> int:
    """FLOPs of the mean block for one token of one iteration: forward, backward (twice that), and what is recomputed.

    A multiply-add counts as two, and causal attention as half of the full one: sequence_length x query width for the
    products with keys, and as much for those with values, which are as wide but for latent attention.
    """
    attention = sequence_length * (model.query_width + model.attended_width)
    forward = 2 * all_used_matrices(model) // model.num_layers + attention
    again = {Recomputation.NONE: 0, Recomputation.SELECTIVE: attention}.get(recomputation, forward)
    return 3 * forward + again


def head_flops(model: Model) -> int:
    """FLOPs of the LM head for one token of one iteration: forward and backward; it is never recomputed.

    What predicts further tokens is with it; attention of these blocks is left out.
    """
    return 2 * (model.hidden_size * model.vocab_size + used_by_mtp(model)) * 3


def blocks_words(placed: Sequence[int]) -> str:
    """Return blocks on each stage, or on each chunk, in short.

    Examples:
        >>> blocks_words((10, 11, 10, 10, 10, 10, 10, 9))
        '10-11-10*5-9'
    """
    runs = [[str(blocks) for blocks in alike] for _, alike in itertools.groupby(placed)]
    return "-".join(f"{alike[0]}*{len(alike)}" if alike[2:] else "-".join(alike) for alike in runs)


def _checked(
    key: str, split: tuple[int, ...], model: Model, parallelism: Parallelism, chunks: int = 1, of_stage: int = 1
) -> tuple[int, ...]:
    """Return blocks of stages that have `chunks` entries each, as given; `of_stage` is how many each might have.

    Raises:
        RefusedWorkloadError: there are others, one is less than 1, or their sum is not the model's blocks.
    """
    shown = f"{key}={list(split)}"
    if len(split) != parallelism.pp * chunks:
        each = f", or for each chunk of each (pipeline.chunks={of_stage})" if of_stage > 1 else ""
        raise RefusedWorkloadError(
            f"{shown}: has {len(split)} entries; must have one for each stage (parallelism.pp={parallelism.pp}){each}."
        )
    if min(split) < 1:
        raise RefusedWorkloadError(f"{shown}: every stage{' and chunk' * (chunks > 1)} must have 1 block or more.")
    if sum(split) != model.num_layers:
        raise RefusedWorkloadError(f"{shown}: adds up to {sum(split)}; must be model.num_layers ({model.num_layers}).")
    return split


def _cuts_into(split: tuple[int, ...], chunks: int) -> bool:
    """Whether every stage's blocks divide into equal chunks, with embedding and head in the place of a block or not."""
    ends = {0, len(split) - 1} if len(split) > 1 else set()
    for stage, layers in enumerate(split):
        with_place = layers + (stage in ends)
        if layers % chunks and with_place % chunks:
            return False
    return True
