"""Layouts that can run: those that divide, combine and fit into memory; and why the others are refused."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from kareus.adviser.layouts import Layout
from kareus.errors import ConfigError, RefusedWorkloadError
from kareus.workload.combinations import check_combinations
from kareus.workload.config import Workload
from kareus.workload.divisibility import check_divisibility
from kareus.workload.memory import TIGHT, MemoryEstimate, SharedMemory, check_memory, estimate_memory
from kareus.workload.pipelining import check_pipeline
from kareus.workload.resolve import with_split

NEARLY = 1.1
"""Memory over what fits, up to which other blocks on the stages of a layout are sought."""


RAN_OUT = "it ran out of memory when it was measured; give more GPUs or fewer constraints."


class Reason(StrEnum):
    """Why a layout is refused."""

    DIVISION = "does not divide"
    """Heads, widths, tokens or GPUs of a node do not divide over the degrees."""
    COMBINATION = "excluded combination"
    """Two of its choices exclude each other."""
    PIPELINE = "schedule does not fit the microbatches"
    SPLIT = "layers do not split over the stages"
    MEMORY = "out of memory"
    MEASURED = "out of memory when measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout that can run."""

    layout: Layout
    workload: Workload
    """The layout's workload, with its layers split over stages."""
    memory: MemoryEstimate
    """Of the fullest GPU."""

    @property
    def words(self) -> str:
        """The layout in words, with the blocks on its stages where these are not as many on each."""
        return (self.layout if len(set(self.workload.parallelism.placed)) == 1 else self.placed).words

    @property
    def placed(self) -> Layout:
        """The layout with the blocks on its stages, however many are on each."""
        return placed_layout(self.layout, self.workload)


def placed_layout(layout: Layout, workload: Workload) -> Layout:
    """Return a layout with the blocks that its workload has on its stages."""
    return replace(layout, layers_per_stage=workload.parallelism.placed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedLayout:
    """A layout that cannot run."""

    layout: Layout
    reason: Reason
    message: str
    """What is wrong, and what to change."""
    memory: MemoryEstimate | None
    """Of the fullest GPU; None where another reason came first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Layouts sorted into those that can run and those that cannot."""

    candidates: list[Candidate]
    refusals: list[RefusedLayout]

    def short(self, base: Workload) -> list[Candidate]:
        """Return layouts of `base` that are refused for little memory, which other blocks on their stages may save."""
        limit_gib = NEARLY * (1 + TIGHT) * base.gpu.memory_gib
        return [
            Candidate(layout=refusal.layout, workload=with_split(refusal.layout.workload(base)), memory=refusal.memory)
            for refusal in self.refusals
            if refusal.memory is not None and refusal.layout.pp > 1 and refusal.memory.total_gib <= limit_gib
        ]

    @property
    def reasons(self) -> dict[str, int]:
        """Number of refused layouts by reason."""
        return dict(Counter(str(refusal.reason) for refusal in self.refusals))


def nearest_to_fit(refusals: Iterable[RefusedLayout]) -> tuple[Layout, MemoryEstimate] | None:
    """Return the layout that lacks the least memory of those that lack nothing else, None where there is none."""
    short = [(refusal.layout, refusal.memory) for refusal in refusals if refusal.memory is not None]
    return min(short, key=lambda pair: pair[1].total_gib, default=None)


CHECKS: tuple[tuple[Reason, Callable[[Workload], None]], ...] = (
    (Reason.DIVISION, check_divisibility),
    (Reason.COMBINATION, check_combinations),
    (Reason.PIPELINE, check_pipeline),
)


def sort_layouts(base: Workload, layouts: Iterable[Layout], unfit: Collection[Layout] = ()) -> Sorted:
    """Sort layouts of `base` into those that can run and those that cannot.

    Args:
        base: what is trained.
        layouts: to sort.
        unfit: layouts, with the blocks on their stages, that ran out of memory.
    """
    sorted_layouts, shared = Sorted(candidates=[], refusals=[]), SharedMemory()
    for layout in layouts:
        verdict = _sorted(base, layout, shared, unfit)
        if isinstance(verdict, Candidate):
            sorted_layouts.candidates.append(verdict)
        else:
            sorted_layouts.refusals.append(verdict)
    return sorted_layouts


def _sorted(
    base: Workload, layout: Layout, shared: SharedMemory, unfit: Collection[Layout]
) -> Candidate | RefusedLayout:
    try:
        workload = layout.workload(base)
    except ConfigError as error:
        return RefusedLayout(layout=layout, reason=Reason.PIPELINE, message=str(error), memory=None)
    reason, estimate = Reason.DIVISION, None
    try:
        for reason, check in CHECKS:  # noqa: B007 - the reason of the check that refuses
            check(workload)
        reason = Reason.SPLIT
        workload = with_split(workload)
        if unfit and placed_layout(layout, workload) in unfit:
            return RefusedLayout(layout=layout, reason=Reason.MEASURED, message=RAN_OUT, memory=None)
        reason = Reason.MEMORY
        estimate = estimate_memory(workload, shared)
        check_memory(workload, estimate)
    except RefusedWorkloadError as error:
        return RefusedLayout(layout=layout, reason=reason, message=str(error), memory=estimate)
    return Candidate(layout=layout, workload=workload, memory=estimate)
