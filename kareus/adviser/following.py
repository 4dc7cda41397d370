"""Layouts as far as they are followed: bounded, predicted, or planned in full.

Each step follows only the layouts that the known plans of others do not rule out, the most promising first, so that
what is left out is behind the frontier for certain: a bound is below all plans of a layout, and known plans are plans.
"""

import bisect
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kareus.adviser.answers import Depth, LayoutAnswer, LayoutChoice, undominated
from kareus.adviser.bounds import Bound, KnownPlans, compute_together, computing_bound
from kareus.adviser.feasible import Candidate
from kareus.adviser.layouts import Layout
from kareus.adviser.order import COMPARED, TIED_SHARE
from kareus.adviser.planning import frontier_of, plan_layout
from kareus.adviser.predictions import LayoutCost, LayoutPrediction, LayoutPredictor
from kareus.adviser.prices import InstructionPrices
from kareus.adviser.stages import Unsplit, better_split, fitting_split
from kareus.adviser.ties import TieMargin
from kareus.software.trainers import ObeyingTrainer
from kareus.workload.config import Workload

MOST_SPLIT = 3
"""Layouts of a number of GPUs for which other blocks on their stages are sought."""


@dataclass(slots=True, kw_only=True)
class Followed:
    """Layouts as far as they were followed."""

    predictor: LayoutPredictor
    bounds: list[tuple[Bound, Candidate]]
    """The latest bound of each that was no more than bounded."""
    predictions: list[LayoutPrediction]
    plans_so_far: KnownPlans
    unfit: Collection[Layout] = ()
    """Layouts that ran out of memory, which are not followed with the blocks with which they did."""
    sequential: dict[int, LayoutCost] = field(default_factory=dict)
    """By identity of the candidate: layouts of which nothing else was predicted, run as Megatron-LM does."""

    def plan(self) -> dict[int, list[LayoutCost]]:
        """Plan in full what known plans leave, the fastest first; returns plans by identity of the candidate."""
        planned: dict[int, list[LayoutCost]] = {}
        for prediction in sorted(self.predictions, key=lambda p: p.plans[0].time_s):
            if not self.plans_so_far.rule_out(prediction.bound):
                plans = plan_layout(self.predictor, prediction)
                self.plans_so_far.add((plan.time_s, plan.energy_j) for plan in plans)
                planned[id(prediction.candidate)] = plans
        return planned

    def split_otherwise(self, planned: dict[int, list[LayoutCost]], trainer: ObeyingTrainer) -> None:
        """Plan the fastest planned layouts with other blocks on their stages as well, where that is worth it."""
        staged = [
            prediction
            for prediction in self.predictions
            if id(prediction.candidate) in planned and prediction.candidate.layout.pp > 1
        ]
        for prediction in sorted(staged, key=lambda prediction: prediction.plans[0].time_s)[:MOST_SPLIT]:
            other = better_split(self.predictor, prediction, trainer)
            if not isinstance(other, Unsplit):
                self._add(other, planned)

    def fit_otherwise(
        self, short: Iterable[Candidate], planned: dict[int, list[LayoutCost]], trainer: ObeyingTrainer
    ) -> None:
        """Plan layouts that alone with their usual blocks on stages do not fit, with others that do.

        These are the fastest that known plans would not rule out if they fitted.
        """
        searched = 0
        for computing, candidate in by_bound(short, self.predictor.costs):
            if searched == MOST_SPLIT:
                return
            if _ruled_out(self.predictor, computing, candidate, self.plans_so_far) is None:
                searched += 1
                fitting = fitting_split(self.predictor, candidate, trainer)
                if fitting is not None:
                    self._add(self.predictor.predict(fitting, self.predictor.bound(fitting.workload)), planned)

    def _add(self, prediction: LayoutPrediction, planned: dict[int, list[LayoutCost]]) -> None:
        """Plan a further layout in full; not again one that was predicted, as that of a job, nor one that is unfit."""
        is_known = any(one.candidate.layout == prediction.candidate.layout for one in self.predictions)
        if is_known or prediction.candidate.placed in self.unfit:
            return
        plans = plan_layout(self.predictor, prediction)
        self.plans_so_far.add((plan.time_s, plan.energy_j) for plan in plans)
        self.predictions.append(prediction)
        planned[id(prediction.candidate)] = plans


def nearest_fitting(
    predictor: LayoutPredictor, short: Iterable[Candidate], trainer: ObeyingTrainer, unfit: Collection[Layout]
) -> list[Candidate]:
    """Return the layouts that lack the least memory with their usual blocks on stages, with others that fit."""
    nearest = sorted(short, key=lambda layout: layout.memory.total_gib)[:MOST_SPLIT]
    fitting = (fitting_split(predictor, layout, trainer) for layout in nearest)
    return [layout for layout in fitting if layout is not None and layout.placed not in unfit]


def by_bound(candidates: Iterable[Candidate], costs: InstructionPrices) -> list[tuple[Bound, Candidate]]:
    """Return layouts with the bounds of their computation, by rising time."""
    candidates = list(candidates)
    compute_together((candidate.workload for candidate in candidates), costs)
    bounded = ((computing_bound(candidate.workload, costs), candidate) for candidate in candidates)
    return sorted(bounded, key=lambda pair: pair[0].fastest_s)


def follow(
    predictor: LayoutPredictor,
    bounded: Sequence[tuple[Bound, Candidate]],
    job: Layout | None = None,
    unfit: Collection[Layout] = (),
) -> Followed:
    """Predict the layouts that known plans do not rule out.

    Args:
        predictor: of their training.
        bounded: layouts with the bounds of their computation, by rising time.
        job: layout that is predicted anyway.
        unfit: layouts that ran out of memory, as of `kareus.adviser.feasible.sort_layouts`.
    """
    followed = Followed(predictor=predictor, bounds=[], predictions=[], plans_so_far=KnownPlans(), unfit=unfit)
    sequential_s: list[float] = []  # rising
    for computing, candidate in bounded:
        is_job = candidate.layout == job
        bound = None if is_job else _ruled_out(predictor, computing, candidate, followed.plans_so_far)
        if bound is not None:
            followed.bounds.append((bound, candidate))
            if _may_compare(predictor, computing, candidate, sequential_s):
                sequential, _ = predictor.sequential(candidate.workload)
                followed.sequential[id(candidate)] = sequential
                bisect.insort(sequential_s, sequential.time_s)
            continue
        prediction = predictor.predict(candidate, predictor.bound(candidate.workload))
        followed.predictions.append(prediction)
        followed.plans_so_far.add((plan.time_s, plan.energy_j) for plan in prediction.plans)
        bisect.insort(sequential_s, prediction.sequential.time_s)
    return followed


def _may_compare(
    predictor: LayoutPredictor, computing: Bound, candidate: Candidate, sequential_s: Sequence[float]
) -> bool:
    """Whether a layout run as Megatron-LM does may be the fastest, or among those whose order is compared.

    Its update takes longest to predict: as its bound is for all ways to run it, that without update comes first.
    """
    if not sequential_s:
        return True
    if computing.fastest_s >= sequential_s[0]:
        return False
    (compared_s,) = sequential_s[COMPARED - 1 :][:1] or [float("inf")]
    bounds = _without_update(predictor, candidate.workload)
    return all(bound.fastest_s <= compared_s * (1 + TIED_SHARE) for bound in bounds)


def _ruled_out(
    predictor: LayoutPredictor, computing: Bound, candidate: Candidate, plans_so_far: KnownPlans
) -> Bound | None:
    """Return the bound by which known plans rule a layout out, cheap ones first; None if they do not."""
    if plans_so_far.rule_out(computing):
        return computing
    workload = candidate.workload
    bounds = itertools.chain(_without_update(predictor, workload), map(predictor.bound, [workload]))
    return next((bound for bound in bounds if plans_so_far.rule_out(bound)), None)


def _without_update(predictor: LayoutPredictor, workload: Workload) -> Iterator[Bound]:
    """Yield bounds of a layout whose update is left out, cheap ones first."""
    if workload.parallelism.shards_gradients:
        yield predictor.bound_beside_weights(workload)
    yield predictor.bound_without_update(workload)


def layout_answers(followed: Followed, planned: dict[int, list[LayoutCost]], margin: TieMargin) -> list[LayoutAnswer]:
    """Return all layouts that can run, by rising time."""
    margins = {id(one.candidate): margin.of(one.candidate.workload) for one in followed.predictions}
    front = frontier_of([plan for plans in planned.values() for plan in plans])
    margins_of = {id(plan): margins[key] for key, plans in planned.items() for plan in plans}
    others = [(plan, *margins_of[id(plan)]) for plan in front]
    answers = []
    for bound, candidate in followed.bounds:
        answers.append(bounded_answer(bound, candidate, followed.sequential.get(id(candidate))))
    for prediction in followed.predictions:
        full_plans = planned.get(id(prediction.candidate))
        plans = full_plans if full_plans is not None else frontier_of(list(prediction.plans))
        answers.append(
            LayoutAnswer(
                number=0,
                candidate=prediction.candidate,
                depth=Depth.PREDICTED if full_plans is None else Depth.PLANNED,
                bound_s=prediction.bound.fastest_s,
                bound_j=prediction.bound.least_j,
                plans=tuple(plans),
                sequential=prediction.sequential,
                bubble_share=prediction.bubble_share,
                exposed_share=prediction.exposed_share,
                is_tied=_is_tied(plans, margins[id(prediction.candidate)], others),
            )
        )
    answers.sort(key=lambda answer: (answer.fastest.time_s if answer.plans else float("inf"), answer.bound_s))
    return [replace(answer, number=number) for number, answer in enumerate(answers, start=1)]


def bounded_answer(bound: Bound, candidate: Candidate, sequential: LayoutCost | None) -> LayoutAnswer:
    """Return a layout without plans and without a number."""
    return LayoutAnswer(
        number=0,
        candidate=candidate,
        depth=Depth.BOUNDED,
        bound_s=bound.fastest_s,
        bound_j=bound.least_j,
        plans=(),
        sequential=sequential,
        bubble_share=None,
        exposed_share=None,
        is_tied=False,
    )


def _is_tied(
    plans: Iterable[LayoutCost], margin: tuple[float, float], front: Sequence[tuple[LayoutCost, float, float]]
) -> bool:
    """Whether a plan would be on the frontier with so much less time and energy than predicted.

    Args:
        plans: of the layout.
        margin: percent of time and of energy by which its predictions may be off.
        front: plans on the frontier, and the same of each: what is compared is no surer than the less sure of two.
    """
    time_percent, energy_percent = margin
    return any(
        all(
            plan.time_s * (1 - max(time_percent, other_time) / 100) < other.time_s
            or plan.energy_j * (1 - max(energy_percent, other_energy) / 100) < other.energy_j
            for other, other_time, other_energy in front
        )
        for plan in plans
    )


def plans_frontier(layouts: Sequence[LayoutAnswer]) -> list[LayoutChoice]:
    """Return the plans of all layouts that no other dominates, by rising time."""
    planned = [layout for layout in layouts if layout.depth is Depth.PLANNED]
    return undominated([LayoutChoice(layout=layout, cost=plan) for layout in planned for plan in layout.plans])


def baseline_of(layouts: Sequence[LayoutAnswer]) -> LayoutChoice:
    """Return the fastest layout run as Megatron-LM does."""
    run = [(answer, answer.sequential) for answer in layouts if answer.sequential is not None]
    layout, cost = min(run, key=lambda pair: pair[1].time_s)
    return LayoutChoice(layout=layout, cost=cost)
