"""Plans for fleets that wait: what a plan costs beside idle GPUs, slower plans, and plans of one method in another.

A fleet that has time in any case, under a power cap or until the hours end, draws static power while it waits. So a
plan costs it its time and its dynamic energy, what it uses above static power. By that measure plans that are slower
than the one of least total energy pay, too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from kareus.gpu_model.waiting import effective_energy_j
from kareus.pareto import ROUNDING, pareto_mask
from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within, plans_within, sound_bound_j
from kareus.pipeline.solver.problem import Problem

SLOWER = 5
"""Plans between the least total and the least dynamic energy; within an hour a fleet mixes them."""


def dynamic_problem(problem: Problem, idle_w: float) -> Problem:
    """Return the problem whose energies are dynamic ones: waiting costs only what blocking draws above idling.

    Args:
        problem: of one pipeline.
        idle_w: power of its GPUs while the fleet waits, at most blocking power.
    """
    return replace(problem, waiting_power_w=problem.waiting_power_w - idle_w)


def dynamic_plan(plan: PlannedIteration, idle_w: float) -> PlannedIteration:
    """Return the plan of the dynamic problem."""
    energy_j, bound_j = (effective_energy_j(each, plan.time_s, idle_w) for each in (plan.energy_j, plan.lower_bound_j))
    return replace(plan, energy_j=energy_j, lower_bound_j=bound_j)


def total_plan(plan: PlannedIteration, idle_w: float) -> PlannedIteration:
    """Return a plan of the dynamic problem with its total energy.

    The bound then is of all plans that are no slower, and wait at idle power until this one ends.
    """
    return dynamic_plan(plan, -idle_w)


def with_slower_plans(plans: Sequence[PlannedIteration], problem: Problem, idle_w: float) -> list[PlannedIteration]:
    """Append plans that are slower and use less dynamic energy, as long as there are such.

    Args:
        plans: a frontier, by rising time.
        problem: what it plans.
        idle_w: power of the pipeline's GPUs while the fleet waits.
    """
    idling, last_s = dynamic_problem(problem, idle_w), plans[-1].time_s
    slowest_s = cheapest_within(idling, math.inf).time_s
    if slowest_s <= last_s * (1 + ROUNDING):
        return list(plans)
    slower = plans_within(idling, np.linspace(last_s, slowest_s, SLOWER + 1)[1:].tolist())
    return _undominated([*plans, *(total_plan(plan, idle_w) for plan in slower)], idle_w)


def with_plans_of(
    plans: Sequence[PlannedIteration],
    problem: Problem,
    others: Iterable[tuple[Problem, Sequence[PlannedIteration]]],
    idle_w: float,
) -> list[PlannedIteration]:
    """Add what is needed so that no plan of another method that this one can run is better than all of its own.

    Args:
        plans: of one method, by rising time.
        problem: what they plan.
        others: problems and plans of other methods.
        idle_w: power of the pipeline's GPUs while the fleet waits.
    """
    missing = [
        run
        for theirs, of_theirs in others
        for plan in of_theirs
        if not any(_is_as_good(ours, plan, idle_w) for ours in plans)
        for run in adopted(plan, theirs, problem)
        if not any(_is_as_good(ours, run, idle_w) for ours in plans)
    ]
    if not missing:
        return list(plans)
    idling = dynamic_problem(problem, idle_w)
    solved = plans_within(idling, [plan.time_s for plan in missing])
    added = [_cheaper(dynamic_plan(run, idle_w), best) for run, best in zip(missing, solved, strict=True)]
    return _undominated([*plans, *(total_plan(plan, idle_w) for plan in added)], idle_w)


def _cheaper(run: PlannedIteration, best: PlannedIteration) -> PlannedIteration:
    """Return the cheaper of two plans, with the bound of the second, which was planned for the time of the first."""
    if run.energy_j >= best.energy_j:
        return best
    return replace(run, lower_bound_j=sound_bound_j(best.lower_bound_j, run.energy_j))


def adopted(plan: PlannedIteration, theirs: Problem, problem: Problem) -> list[PlannedIteration]:
    """Return the plan of another method with points of this one, none of which takes more time or more energy.

    Empty where an instruction has no such point: the method cannot run the plan.
    """
    choice = []
    # Effective energies leave out the least power of waiting, which differs where methods have other clocks.
    more_w = (theirs.waiting_power_w - problem.waiting_power_w) / max(len(problem.stages), 1)
    for their, our, point in zip(theirs.point_sets, problem.point_sets, plan.points, strict=True):
        n = their.points.index(point)
        taken = int(np.searchsorted(our.seconds, their.times_s[n], side="right")) - 1
        if taken < 0 or our.energies_j[taken] - more_w * our.times_s[taken] > their.energies_j[n]:
            return []
        choice.append(taken)
    time_s, energy_j = problem.cost(choice)
    points = tuple(our.points[taken] for our, taken in zip(problem.point_sets, choice, strict=True))
    return [replace(plan, time_s=time_s, energy_j=energy_j, points=points)]


def _is_as_good(plan: PlannedIteration, other: PlannedIteration, idle_w: float) -> bool:
    """Whether a plan has no more time and no more dynamic energy than another; then its total is no more, too."""
    dynamic_j, other_j = (dynamic_plan(each, idle_w).energy_j for each in (plan, other))
    return plan.time_s <= other.time_s and dynamic_j <= other_j


def _undominated(plans: Sequence[PlannedIteration], idle_w: float) -> list[PlannedIteration]:
    """Return the plans that no other has less time and less dynamic energy than, by rising time."""
    ranked = sorted(plans, key=lambda plan: (plan.time_s, plan.energy_j))
    mask = pareto_mask(np.array([(plan.time_s, dynamic_plan(plan, idle_w).energy_j) for plan in ranked]))
    return [plan for plan, kept in zip(ranked, mask, strict=True) if kept]
