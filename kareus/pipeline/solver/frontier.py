"""The iteration frontier: plans from the least makespan to the least total energy, each with a certified gap.

The paper adopts Perseus's iterative algorithm here (section 4.4). This solver answers the same question from below: the
linear program says what no plan can undercut, and rounding its optimum gives a plan made of real points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.errors import ConfigError
from kareus.pareto import pareto_mask
from kareus.pipeline.solver.exact import MOST_INSTRUCTIONS, least_energy_plan
from kareus.pipeline.solver.exchange import exchange
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, energies_in_time_j
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation, Relaxed
from kareus.pipeline.solver.rounding import round_plans
from kareus.pipeline.solver.splicing import splice
from kareus.pipeline.solver.trading import trade

RESOLUTION = 1e-5
"""Share of the iteration time to which `fastest_within` finds the deadline."""
EARLIER = (0.0, 0.001)
"""Shares by which short pipelines aim earlier than a deadline: close by, the relaxation may have fewer fractions."""
WIDE = 0.001
"""Gap above which plans of long pipelines are improved."""
NEARBY = (0.996, 1.004)
"""Deadlines, as shares of one whose gap is wide, of which plans are spliced."""
ATTEMPTS = 24
"""Deadlines that `fastest_within` plans for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedIteration:
    """One plan of an iteration frontier."""

    time_s: float
    """Makespan."""
    energy_j: float
    """Of all GPUs over the iteration."""
    deadline_s: float
    """Deadline for which it was solved."""
    lower_bound_j: float
    """Energy that no plan with this makespan or less can undercut; of `plans_within`, none within the deadline."""
    points: tuple[int, ...]
    """Per instruction, the `point` of its microbatch frontier."""

    @property
    def gap(self) -> float:
        """Certified gap to the lower bound."""
        return self.energy_j / self.lower_bound_j - 1


def iteration_frontier(problem: Problem, deadlines: int) -> list[PlannedIteration]:
    """Plan for `deadlines` evenly spaced deadlines and keep the plans that no other dominates, by rising time.

    The first deadline is the least makespan there is, and a single one is that; the last is the makespan of the least
    total energy.
    """
    relaxation = Relaxation(problem)
    deadlines_s = np.unique(np.linspace(*_range_s(relaxation), deadlines))
    choices, relaxed = _plan(problem, relaxation, deadlines_s)
    costs = np.array([problem.cost(choice) for choice in choices])
    kept = sorted(np.flatnonzero(pareto_mask(costs)), key=lambda n: costs[n, 0])
    return [_planned(problem, choices[n], float(deadlines_s[n]), relaxed, certified_s=costs[n, 0]) for n in kept]


def plans_within(problem: Problem, deadlines_s: Sequence[float]) -> list[PlannedIteration]:
    """Plan for exactly these deadlines, and certify the gap of each plan to all plans within its deadline.

    Args:
        problem: what to plan.
        deadlines_s: bounds on the makespan, in any order.

    Returns:
        One plan for each deadline, in their order; a later deadline never costs more.

    Raises:
        ConfigError: no plan keeps one of the deadlines.
    """
    relaxation = Relaxation(problem)
    fastest_s, frugal_s = _range_s(relaxation)
    for deadline_s in deadlines_s:
        if not deadline_s >= fastest_s * (1 - TOLERANCE):
            raise ConfigError(
                f"no plan keeps a deadline of {deadline_s:.6g} s: the fastest takes {fastest_s:.6g} s, and after "
                f"{frugal_s:.6g} s no plan uses less energy; choose a deadline between the two."
            )
    useful_s, inverse = np.unique(np.clip(deadlines_s, fastest_s, frugal_s), return_inverse=True)
    choices, relaxed = _plan(problem, relaxation, useful_s)
    costs_j = [problem.cost(choice)[1] for choice in choices]
    best = [min(range(n + 1), key=costs_j.__getitem__) for n in range(len(choices))]
    return [
        _planned(problem, choices[best[n]], deadline_s, relaxed, certified_s=min(deadline_s, relaxation.slowest_s))
        for n, deadline_s in zip(inverse, deadlines_s, strict=True)
    ]


def cheapest_within(problem: Problem, deadline_s: float) -> PlannedIteration:
    """As `plans_within`, for one deadline."""
    return plans_within(problem, [deadline_s])[0]


def fastest_within(problem: Problem, energy_j: float, between_s: tuple[float, float]) -> PlannedIteration | None:
    """The fastest plan found that uses at most this energy; None where there is none.

    The relaxation says which deadlines are too early for any plan. Those after it are tried, the closer the denser.

    Args:
        problem: what to plan.
        energy_j: of all GPUs over the iteration.
        between_s: makespans to search between: at the lower no plan is known to be that frugal, at the upper one is.
    """
    relaxation, (low_s, high_s) = Relaxation(problem), between_s
    reached_s = relaxation.time_s(energy_j)
    if reached_s is None:
        return None
    low_s, closest_s = max(low_s, reached_s), RESOLUTION * high_s
    if low_s + closest_s >= high_s:
        return None
    deadlines_s = low_s + np.geomspace(closest_s, high_s - low_s, ATTEMPTS)[:-1]
    choices, relaxed = _plan(problem, relaxation, deadlines_s)
    costs = [problem.cost(choice) for choice in choices]
    frugal = [n for n, (_, used_j) in enumerate(costs) if used_j <= energy_j]
    if not frugal:
        return None
    best = min(frugal, key=costs.__getitem__)
    return _planned(problem, choices[best], float(deadlines_s[best]), relaxed, certified_s=costs[best][0])


def _range_s(relaxation: Relaxation) -> tuple[float, float]:
    """The least makespan there is, and that of the least total energy."""
    frugal = relaxation.solve(relaxation.slowest_s)
    return relaxation.fastest_s, max(frugal.time_s, relaxation.makespan_at_points(frugal), relaxation.fastest_s)


def _plan(problem: Problem, relaxation: Relaxation, deadlines_s: Array) -> tuple[list[list[int]], list[Relaxed]]:
    """A plan for each deadline, by rising deadline, and the optima of the relaxation that they come from."""
    is_short = len(problem.point_sets) <= MOST_INSTRUCTIONS
    if is_short:
        tried, relaxed = _aiming_earlier(problem, relaxation, deadlines_s)
    else:
        tried, relaxed = _narrowing(problem, relaxation, deadlines_s)
    lanes_s = np.tile(deadlines_s, tried.shape[1] // len(deadlines_s))
    tried = exchange(problem, tried, lanes_s)
    best = energies_in_time_j(problem, tried, lanes_s).reshape(-1, len(deadlines_s)).argmin(axis=0)
    kept = tried[:, best * len(deadlines_s) + np.arange(len(deadlines_s))]
    if is_short:
        kept = trade(problem, kept, deadlines_s)
    choices = kept.T.tolist()
    if deadlines_s[0] <= relaxation.fastest_s:
        choices[0] = least_energy_plan(problem, choices[0], relaxation.fastest_s)
    return choices, relaxed


def _aiming_earlier(problem: Problem, relaxation: Relaxation, deadlines_s: Array) -> tuple[Choices, list[Relaxed]]:
    """Plans of short pipelines: a set of all deadlines for each aim; shape (instructions, aims x deadlines)."""
    aims_s = [np.maximum(deadlines_s * (1 - share), relaxation.fastest_s) for share in EARLIER]
    rounded, relaxed = zip(*(_rounded(problem, relaxation, own_s) for own_s in aims_s), strict=True)
    return np.hstack(rounded), [solved for own in relaxed for solved in own]


def _narrowing(problem: Problem, relaxation: Relaxation, deadlines_s: Array) -> tuple[Choices, list[Relaxed]]:
    """Plans of long pipelines; where a gap is wide, spliced from those of deadlines nearby."""
    choices, relaxed = _rounded(problem, relaxation, deadlines_s)
    bounds_j = np.array([solved.energy_j for solved in relaxed])
    is_wide = energies_in_time_j(problem, choices, deadlines_s) > bounds_j * (1 + WIDE)
    if not is_wide.any():
        return choices, relaxed
    least_s, most_s = _range_s(relaxation)
    nearby_s = np.unique(np.clip(np.outer(deadlines_s[is_wide], NEARBY), least_s, most_s))
    others, relaxed_nearby = _rounded(problem, relaxation, nearby_s)
    others = np.hstack([choices[:, ~is_wide], others])
    choices[:, is_wide] = splice(problem, choices[:, is_wide], others, deadlines_s[is_wide])
    return choices, relaxed + relaxed_nearby


def _rounded(problem: Problem, relaxation: Relaxation, deadlines_s: Array) -> tuple[Choices, list[Relaxed]]:
    """A plan for each deadline, as rounding leaves it, and the optimum of the relaxation that it comes from."""
    # From the latest to the earliest: starting each from the one before is a tenth faster that way than the other.
    relaxed = [relaxation.solve(deadline_s * (1 + TOLERANCE)) for deadline_s in deadlines_s[::-1]][::-1]
    return round_plans(problem, np.column_stack([solved.times_s for solved in relaxed]), deadlines_s), relaxed


def _planned(
    problem: Problem, choice: Sequence[int], deadline_s: float, relaxed: Sequence[Relaxed], certified_s: float
) -> PlannedIteration:
    """A plan, and the bound on all plans with a makespan of at most `certified_s`."""
    time_s, energy_j = problem.cost(choice)
    bound_j = max(solved.bound_j(certified_s * (1 + TOLERANCE)) for solved in relaxed)
    return PlannedIteration(
        time_s=time_s,
        energy_j=energy_j,
        deadline_s=deadline_s,
        lower_bound_j=min(bound_j, energy_j),  # an exact plan can lie a rounding error below the computed bound
        points=tuple(points.points[c] for points, c in zip(problem.point_sets, choice, strict=True)),
    )
