"""The plans that the paper's iso-time and iso-energy comparisons ask for, between those of a frontier's grid."""

from collections.abc import Sequence

import numpy as np

from kareus.pareto import pareto_mask
from kareus.pipeline.solver.frontier import PlannedIteration, cheapest_within
from kareus.pipeline.solver.problem import Problem
from kareus.plans.limits import fastest_under


def with_iso_plans(
    plans: Sequence[PlannedIteration], problem: Problem, baseline: Sequence[PlannedIteration]
) -> tuple[PlannedIteration, ...]:
    """Add the cheapest plan within the baseline's least time, and the fastest within its least energy.

    Args:
        plans: a frontier, by rising time.
        problem: what it plans.
        baseline: the frontier that it is compared with, by rising time.

    Returns:
        The frontier of all of them, by rising time; a plan that cannot be as fast or as frugal is not added.
    """
    deadline_s, energy_j = baseline[0].time_s, baseline[-1].energy_j
    added = [cheapest_within(problem, deadline_s)] if plans[0].time_s <= deadline_s else []
    frugal = next((n for n, plan in enumerate(plans) if plan.energy_j <= energy_j), 0)
    if frugal > 0:
        ends = ((plan.time_s, plan.energy_j) for plan in plans[frugal - 1 : frugal + 1])
        fastest = fastest_under(problem, (energy_j, 0.0), *ends)
        added += [fastest] if fastest is not None else []
    found = sorted([*plans, *added], key=lambda plan: (plan.time_s, plan.energy_j))
    mask = pareto_mask(np.array([(plan.time_s, plan.energy_j) for plan in found]))
    return tuple(plan for plan, kept in zip(found, mask, strict=True) if kept)
