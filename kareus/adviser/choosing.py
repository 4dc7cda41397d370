"""Choosing among the plans of layouts: what keeps the limits of a question, and has the least of what it asks for."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kareus.adviser.answers import (
    LayoutAnswer,
    LayoutChoice,
    SizeAnswer,
    iterations_of,
    plan_by,
    plans_of,
    selectors_of,
    undominated,
)
from kareus.adviser.goals import Least
from kareus.adviser.layouts import constraints_of, layouts_of
from kareus.adviser.limits import keeps, nearest_words
from kareus.adviser.predictions import LayoutCost
from kareus.adviser.question import Question
from kareus.errors import ConfigError
from kareus.pareto import AS_FAST, as_fast_s

LESS_TELLING = (
    "dp", "shards", "sequence_parallel", "ep", "cp", "sharding", "recomputation", "microbatch_size", "schedule", "tp",
    "chunks",
)  # fmt: skip
"""Constraints that are left out one after the other where a layout is told without them; `pp` is always given."""


def choose(question: Question, sizes: Sequence[SizeAnswer]) -> LayoutChoice:
    """Return the plan that a question asks for.

    Raises:
        ConfigError: no plan keeps its limits; with the nearest.
    """
    best = best_of(question, [choice for size in sizes for choice in choices_of(question, size)])
    if best is None:
        raise ConfigError(nearest_words(question, [choice for size in sizes for choice in plans_of(size.layouts)]))
    return best


def choices_of(question: Question, size: SizeAnswer) -> Sequence[LayoutChoice]:
    """Return the plans that keep the limits and that no other such plan dominates.

    Under a cap these are not on the frontier alone: what takes more time and more energy may take less power.
    """
    kept = [choice for choice in plans_of(size.layouts) if keeps(question, choice)]
    return undominated(kept) if question.goals.caps else size.frontier


def best_of(question: Question, choices: Iterable[LayoutChoice]) -> LayoutChoice | None:
    """Return the plan that a question asks for among some; of those as good it takes the least memory.

    None: no plan keeps its limits.
    """
    kept = [choice for choice in choices if keeps(question, choice)]
    if kept and question.goals.minimised is Least.TIME:
        within_s = as_fast_s(choice.cost.time_s for choice in kept)
        kept = [choice for choice in kept if choice.cost.time_s <= within_s]
    within = min((_measures(question, choice)[0] for choice in kept), default=0.0) * (1 + AS_FAST)
    tied = [choice for choice in kept if _measures(question, choice)[0] <= within]
    return min(
        tied, key=lambda choice: (choice.layout.candidate.memory.total_gib, *_measures(question, choice)), default=None
    )


def plan_asked(question: Question, selector: str, layout: LayoutAnswer) -> LayoutCost | None:
    """Return the plan of a layout by a selector, or its best where that breaks the limits; None: all do."""
    plan = plan_by(selector, layout)
    if plan is not None and keeps(question, LayoutChoice(layout=layout, cost=plan)):
        return plan
    best = best_of(question, plans_of([layout]))
    return None if best is None else best.cost


def telling_constraints(question: Question, answer: LayoutAnswer, layouts: Sequence[LayoutAnswer]) -> tuple[str, ...]:
    """Return constraints, such as `pp=2` and `chunks=4`, to which a layout is the answer where the least time is asked.

    They leave none of the layouts that may be as fast. All that the layout has are given where something else is asked.
    """
    layout, within_s = answer.candidate.layout, answer.fastest.time_s * (1 + AS_FAST)
    rivals = {
        replace(each.candidate.layout, layers_per_stage=None)
        for each in layouts
        if (each.plans[0].time_s if each.plans else each.bound_s) <= within_s
    } - {replace(layout, layers_per_stage=None)}
    size, constraints = (layout.gpus, question.global_batch), constraints_of(layout)
    for name in LESS_TELLING if question.goals.minimised is Least.TIME else ():
        fewer = replace(constraints, **{name: ()})
        if not getattr(question.constraints, name) and rivals.isdisjoint(layouts_of(question.base, *size, fewer)):
            constraints = fewer
    return constraints.words


def by_selector(question: Question, choice: LayoutChoice, choices: Sequence[LayoutChoice]) -> LayoutChoice:
    """Return what a plain selector of `kareus plan` gives in the layout of a choice, if it is as good; else the choice.

    So an answer has the figures of the plan that its command makes.
    """
    others = {other.cost: other for other in choices if other.layout is choice.layout}
    most_s, most = choice.cost.time_s * (1 + AS_FAST), _measures(question, choice)[0] * (1 + AS_FAST)
    for selector in selectors_of(question, choice):
        plan = plan_by(selector, choice.layout)
        if plan is None or (other := others.get(plan)) is None:
            continue
        is_fast = plan.time_s <= most_s or question.goals.minimised is not Least.TIME
        if is_fast and keeps(question, other) and _measures(question, other)[0] <= most:
            return other
    return choice


def _measures(question: Question, choice: LayoutChoice) -> tuple[float, ...]:
    """Return what the chosen plan has the least of, and what decides between equal ones."""
    energy_j, time_s = choice.cost.energy_j, choice.cost.time_s
    match question.goals.minimised:
        case Least.EDP:
            return (energy_j * time_s,)
        case Least.COST:
            return (_cost(question, choice),)
        case _:
            return energy_j, time_s


def _cost(question: Question, choice: LayoutChoice) -> float:
    """Return what an iteration costs, at the mean prices of the whole training."""
    gpus = choice.layout.candidate.layout.gpus
    run = iterations_of(question, choice)
    money = question.goals.money(run * choice.cost.time_s, run * choice.cost.energy_j, gpus)
    return 0.0 if money is None else money / run
