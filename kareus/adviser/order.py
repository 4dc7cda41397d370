"""The order in which layouts are recommended: the fastest first; of those that are as fast, what needs least memory.

Software is recommended no layout that it has no setting for, and Kareus' engine none that it does not run.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from kareus.adviser.feasible import Candidate, Sorted
from kareus.adviser.layouts import RECOMPUTATIONS, SCHEDULES, SHARDINGS
from kareus.artifacts.records import leaves, to_plain
from kareus.interchange.writing import no_setting
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.trainers import ObeyingTrainer
from kareus.workload.config import Workload

TIED_SHARE = 0.03
"""Times within this of the least are equal: GPUs of one kind, and releases of one software, differ by more."""
COMPARED = 16
"""Layouts, the first in this order, of which is said what another order would cost."""
SPLIT = "parallelism.layers_per_stage"
OTHERS: dict[str, tuple[str, tuple[object, ...]]] = {
    "parallelism.sharding": ("sharding", tuple(reversed(SHARDINGS))),
    "pipeline.schedule": ("schedule", SCHEDULES),
    "recomputation": ("recompute", RECOMPUTATIONS),
}
"""Words for parts of a layout, and values to try where software has no setting for another: of sharding first what
takes least memory, of the others what takes least time."""
FULL_SHARE = 0.95
"""Share of a GPU's memory above which nothing is recommended without a word: the allocator needs the rest."""


def recommended(times_s: Sequence[float], memory_gib: Sequence[float]) -> list[int]:
    """Return the indices of layouts in the order of recommendation.

    Args:
        times_s: predicted times of an iteration.
        memory_gib: of the fullest GPU of each.

    Example:
        >>> recommended([1.00, 1.02, 1.10], [40.0, 20.0, 10.0])
        [1, 0, 2]
    """
    left = sorted(range(len(times_s)), key=lambda place: times_s[place])
    order = []
    while left:
        tied = [place for place in left if times_s[place] <= times_s[left[0]] * (1 + TIED_SHARE)]
        chosen = min(tied, key=lambda place: memory_gib[place])
        left.remove(chosen)
        order.append(chosen)
    return order


def with_setting(layouts: Sorted, trainer: ObeyingTrainer) -> Sorted:
    """Return layouts without those that what trains has no setting for, or does not run; all where that leaves none."""
    return replace(layouts, candidates=trainable(layouts.candidates, trainer) or layouts.candidates)


def trainable(candidates: Sequence[Candidate], trainer: ObeyingTrainer) -> list[Candidate]:
    """Return the candidates that what trains has all settings for, or runs."""
    if trainer.overlaps:
        return [candidate for candidate in candidates if not engine_refusal(candidate.workload)]
    return settable(candidates)


def settable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that the software which trains has all settings for."""
    checked: dict[object, bool] = {}
    kept = []
    for candidate in candidates:
        workload = candidate.workload
        layout = workload.parallelism
        key = (
            *(degree > 1 for degree in (layout.tp, layout.cp, layout.pp, layout.dp, layout.ep, workload.chunks)),
            *(layout.sharding, layout.shards is not None, layout.sequence_parallel),
            *(workload.recomputation, workload.pipeline.schedule),
        )
        if key not in checked:
            checked[key] = not without_setting(workload)
        if checked[key]:
            kept.append(candidate)
    return kept


def splits(workload: Workload) -> bool:
    """Return whether the software that trains can be told the blocks of each stage of a workload."""
    plain, per_node = dict(leaves(to_plain(workload))), workload.gpu.gpus_per_node
    return not no_setting(workload.software.name, plain, per_node, [SPLIT])


def settable_instead(workload: Workload) -> tuple[str, ...]:
    """Return what to ask for in place of values that software has no setting for, such as `sharding=full`.

    Each is the first of the other values of its part that has a setting in this layout, where one has.
    """
    plain, per_node = dict(leaves(to_plain(workload))), workload.gpu.gpus_per_node
    instead = []
    for text in without_setting(workload):
        word, values = OTHERS.get(key := text.partition("=")[0], ("", ()))
        able = (v for v in values if not no_setting(workload.software.name, plain | {key: str(v)}, per_node, [key]))
        instead += [f"{word}={value}" for value in itertools.islice(able, 1)]
    return tuple(instead)


def without_setting(workload: Workload) -> tuple[str, ...]:
    """Return the values of a layout that the software which trains has no setting for, such as `pipeline=zb-h1`."""
    return no_setting(workload.software.name, dict(leaves(to_plain(workload))), workload.gpu.gpus_per_node)
