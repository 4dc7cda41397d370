"""Answers of the adviser: what layouts cost, the frontier over them, the chosen plan, and the baseline."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import polars as pl

from kareus.adviser.feasible import Candidate, RefusedLayout
from kareus.adviser.predictions import LayoutCost
from kareus.adviser.question import Question
from kareus.adviser.ties import TieMargin
from kareus.artifacts.shown import Shown
from kareus.errors import ConfigError
from kareus.graph.number_formats import Precision
from kareus.pareto import as_fast_s, pareto_order
from kareus.plans.selectors import Goal, parse_selector, select
from kareus.workload.config import Workload
from kareus.workload.model_flops import tokens_per_iteration

NOISE = 0.005
"""Share of a time by which plans that are measured may lie beside those of the GPU model."""
NEVER_S = 1e10
"""More than any iteration takes."""


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
    """From 1, by rising time of its fastest plan; 0 of a job's layout that is not among those that were asked for."""
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
    ties: TieMargin
    """Of the layouts that were predicted."""
    effort: Effort
    job: LayoutChoice | None = None
    """The layout of the job whose files were given, run so; None without files, or with other GPUs or another batch."""

    @property
    def reference(self) -> LayoutChoice:
        """What plans are compared with: the job's layout, else the fastest, each run as Megatron-LM does."""
        return self.job or self.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """What is known of the order of layouts for software that was never measured."""

    software: str
    measured_otherwise: bool
    """Whether it was measured on the GPU, with other settings, formats or kinds of models."""
    wrong_order_percent: float | None
    """By how much the first choice is slower than the best of the compared layouts, for the software most unlike."""
    most_unlike: str | None
    """None where no other software was measured with such models."""
    compared: int
    """Layouts that were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LackedOverlap:
    """Overlap of collectives with passes that a trainer has and a job does not turn on."""

    settings: tuple[str, ...]
    """What turns it on, as the trainer says it."""
    layout: LayoutAnswer
    """The chosen layout, or the fastest that shares out what the job does, if it costs that time alone."""
    without_s: float
    """Time of the layout, run by itself, as the job is set."""
    with_s: float
    """That with the overlap."""
    overlapped: Workload
    """The layout with the overlap."""


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
        Qwen3 1.7B on 4 H200, 16 sequences of 4,096 tokens: train with Megatron-Core, dp 4, and plan ...
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
    unmeasured: Unmeasured | None = None
    """What a wrong order may cost; None for software that was measured, and where there is no choice."""
    measure_first: Sequence[LayoutAnswer] = ()
    """Layouts to measure before a long training, the first choice first; empty where there is no choice."""
    lacked: LackedOverlap | None = None
    """Overlap that the job whose files were given lacks, where that costs time; None elsewhere."""
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
    def ties(self) -> TieMargin:
        """The margin of ties for the chosen number of GPUs."""
        return self.size.ties

    @property
    def is_reference(self) -> bool:
        """Whether the chosen layout is the one that it is compared with."""
        return self.size.reference.layout.candidate.layout == self.chosen.layout.candidate.layout

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
        """Selector of the chosen plan on the chosen layout's own frontier."""
        chosen, plans = self.chosen.cost, self.chosen.layout.plans
        for selector in (*selectors_of(self.question, self.chosen), Goal.MIN_ENERGY):
            if plan_by(selector, self.chosen.layout) == chosen:
                return selector
        slower_s = min((plan.time_s for plan in plans if plan.time_s > chosen.time_s), default=NEVER_S)
        most_s = min(chosen.time_s * (1 + NOISE), (chosen.time_s + slower_s) / 2)
        least_s = plans[0].time_s
        if chosen == plans[0]:
            return f"{Goal.STRAGGLER}=1x"
        if most_s < least_s * (1 + NOISE):  # a time of its own could be less than any that is measured
            return f"{Goal.STRAGGLER}={most_s / least_s:.5g}x"
        return f"{Goal.DEADLINE}={most_s:.5g}s"


def iterations_of(question: Question, choice: LayoutChoice) -> float:
    """Return the iterations of the training; 1 where its tokens are not known."""
    tokens = question.goals.tokens
    return 1.0 if tokens is None else tokens / tokens_per_iteration(choice.layout.candidate.workload)


def plans_of(layouts: Iterable[LayoutAnswer]) -> list[LayoutChoice]:
    """Return all plans of layouts."""
    return [LayoutChoice(layout=layout, cost=plan) for layout in layouts for plan in layout.plans]


def undominated(choices: Sequence[LayoutChoice]) -> list[LayoutChoice]:
    """Return the plans that no other dominates, by rising time."""
    return [choices[n] for n in pareto_order([(choice.cost.time_s, choice.cost.energy_j) for choice in choices])]


def limits_of(question: Question, layout: LayoutAnswer) -> tuple[float | None, float | None]:
    """Return the most mean power of all GPUs, and the most time of an iteration, that a question allows a layout."""
    cap_w = question.goals.cap_w(layout.candidate.layout.gpus, question.base.gpu.gpus_per_node)
    return cap_w, question.goals.iteration_s(tokens_per_iteration(layout.candidate.workload))


def selectors_of(question: Question, choice: LayoutChoice) -> list[str]:
    """Return the selectors by which a plan of a layout may be what a question asks for, the plainest first."""
    time_s = iterations_of(question, choice) * choice.cost.time_s
    return list(question.goals.selectors(time_s, *limits_of(question, choice.layout)))


def plan_by(selector: str, layout: LayoutAnswer) -> LayoutCost | None:
    """Return the plan of a layout that a selector asks for, as `kareus plan` selects; None where there is none."""
    costs = pl.DataFrame([(plan.time_s, plan.energy_j) for plan in layout.plans], ["time_s", "energy_j"], orient="row")
    try:
        return layout.plans[select(parse_selector(selector), costs, layout.candidate.layout.gpus)]
    except ConfigError:
        return None
