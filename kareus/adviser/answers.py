"""Answers of the adviser: what layouts cost, the frontier over them, the chosen plan, and the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kareus.adviser.feasible import Candidate, RefusedLayout
from kareus.adviser.layouts import Layout
from kareus.adviser.predictions import LayoutCost
from kareus.adviser.question import Question
from kareus.adviser.ties import TieMargin
from kareus.artifacts.shown import Shown
from kareus.graph.number_formats import Precision
from kareus.pareto import as_fast_s

NOISE = 0.005
"""Share of a time by which plans that are measured may lie beside those of the GPU model."""


class Depth(StrEnum):
    """How far a layout was followed."""

    BOUNDED = "bounded"
    """Its bound lies behind plans of others."""
    PREDICTED = "predicted"
    """Its predicted plans lie behind those of others."""
    PLANNED = "planned"
    """It was planned in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAnswer:
    """One layout that can run."""

    number: int
    """From 1, by rising time of its fastest plan."""
    candidate: Candidate
    depth: Depth
    bound_s: float
    """Time that no plan undercuts."""
    bound_j: float
    """Energy that no plan undercuts."""
    plans: tuple[LayoutCost, ...]
    """Its frontier if it was planned, known plans if it was predicted; by rising time."""
    sequential: LayoutCost | None
    """Run as Megatron-LM does, at the maximum clock; None if it was only bounded."""
    bubble_share: float | None
    """Share of that iteration in which GPUs wait for other stages."""
    exposed_share: float | None
    """Share of that iteration that collectives of its blocks add to computation."""
    is_tied: bool
    """Whether it would be on the frontier with as much less time and energy as the margin of ties allows."""

    @property
    def fastest(self) -> LayoutCost:
        """Its plan `fastest`; there is none where it was only bounded."""
        within_s = as_fast_s(plan.time_s for plan in self.plans)
        return [plan for plan in self.plans if plan.time_s <= within_s][-1]  # energy falls along a frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """One plan of one layout."""

    layout: LayoutAnswer
    cost: LayoutCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How many layouts were followed how far, and the seconds that took."""

    configurations: int
    refused: Mapping[str, int]
    """Layouts that cannot run, by reason."""
    bounded: int
    predicted: int
    planned: int
    resplit: int
    """Layouts that were planned with other blocks on their stages than the usual ones, beside the former numbers."""
    enumerate_s: float
    bound_s: float
    predict_s: float
    plan_s: float

    @property
    def planned_words(self) -> str:
        """How many were planned, and how many beside them with other blocks on their stages."""
        others = f", {self.resplit:,} more with other blocks on their stages" if self.resplit else ""
        return f"{self.planned:,} planned in full{others}"

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.enumerate_s + self.bound_s + self.predict_s + self.plan_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """The answer for one number of GPUs."""

    gpus: int
    layouts: Sequence[LayoutAnswer]
    """Those that can run."""
    refusals: Sequence[RefusedLayout]
    frontier: Sequence[LayoutChoice]
    """Plans of all layouts that no other plan dominates, by rising time."""
    baseline: LayoutChoice
    """The fastest layout run as Megatron-LM does."""
    effort: Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """What is known of the order of layouts for software that was never measured."""

    software: str
    wrong_order_percent: float
    """By how much the first choice is slower than the best of the compared layouts, for the software most unlike."""
    most_unlike: str
    compared: int
    """Layouts that were compared."""
    measure_first: tuple[Layout, ...]
    """Those that tell most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatAnswer:
    """What a training costs with the products of its blocks in one number format."""

    precision: Precision
    choice: LayoutChoice | None
    """The best layout, as the question asks, on as many GPUs as were chosen; None where none can run."""
    refusal: str
    """Why none can run; nothing where one can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Shown):
    """The answer to a question.

    Example:
        >>> import kareus
        >>> asked = ["model=qwen3-1.7b", "gpu=h200", "tp=1", "microbatch_size=4", "recompute=none"]
        >>> advice = kareus.advise(asked, gpus=4, global_batch=16)
        >>> print(advice)
        Qwen3 1.7B on 4 H200: train with Megatron-Core and plan ...
        >>> (workload,) = kareus.resolve(advice.overrides)
        >>> workload.parallelism.gpus
        4
    """

    question: Question
    sizes: Sequence[SizeAnswer]
    """By rising number of GPUs; those for which no layout can run, or no plan keeps the limits, are left out."""
    left_out: Mapping[int, str]
    """Numbers of GPUs that were left out, and why."""
    chosen: LayoutChoice
    chosen_gpus: int
    ties: TieMargin
    unmeasured: Unmeasured | None = None
    """What a wrong order may cost, and what to measure first; None for software that was measured."""
    engine: LayoutCost | None = None
    """The plan `fastest` of the chosen layout in Kareus' engine; None where that is what runs the plan, or does
    not run the layout."""
    formats: Sequence[FormatAnswer] = ()
    """Number formats that were to be compared, in the order in which they were asked for."""
    output: Path = Path("advised")
    """Folder into which the commands that go on from the answer write."""

    @property
    def size(self) -> SizeAnswer:
        """The answer for the chosen number of GPUs."""
        return next(size for size in self.sizes if size.gpus == self.chosen_gpus)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Hydra overrides that give the chosen layout, on GPUs that keep their cap."""
        workload = self.chosen.layout.candidate.workload
        capped = self.question.base.gpu.power_limit_w != workload.gpu.power_limit_w
        return (
            *self.question.overrides,
            *([f"gpu.power_limit_w={workload.gpu.power_limit_w:g}"] if capped else []),
            *self.chosen.layout.candidate.layout.overrides,
        )

    @property
    def method(self) -> str:
        """Method whose plans the trainer can run in the chosen layout."""
        return self.question.trainer.method

    @property
    def selector(self) -> str:
        """Selector of the chosen plan on the chosen layout's own frontier, with room for the noise of measuring."""
        first, last = self.chosen.layout.fastest, self.chosen.layout.plans[-1]
        if self.chosen.cost == first:
            return "fastest"
        if self.chosen.cost == self.chosen.layout.plans[0]:
            return "straggler=1x"
        if self.chosen.cost.time_s >= last.time_s:
            return "min-energy"
        return f"deadline={self.chosen.cost.time_s * (1 + NOISE):.4g}s"
