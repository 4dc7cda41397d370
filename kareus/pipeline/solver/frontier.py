"""The iteration frontier: plans from the least makespan to the least total energy, each with a certified gap.

The paper adopts Perseus's iterative algorithm here (section 4.4). This solver answers the same question from below: the
linear program says what no plan can undercut, and its prices guide the search for a plan made of real points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.errors import ConfigError
from kareus.pareto import AS_FAST, ROUNDING, pareto_order
from kareus.pipeline.solver.lanes import TOLERANCE, Choices, energies_in_time_j
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.splices import spliced
from kareus.pipeline.solver.starts import Starts

WIDE = 0.0012
"""Gap above which plans are spliced."""
NEARBY = (0.996, 1.0, 1.004)
"""Deadlines, as shares of one whose gap is wide, that plans to splice are made for."""


def search(starts: Starts, deadlines_s: Array) -> Choices:
    """Return a plan for each of rising deadlines in seconds, (deadlines,); shape (instructions, deadlines).

    Raises:
        ValueError: No plan keeps one of the deadlines.
        ArtifactError: HiGHS finds no optimum.
    """
    problem, choices = starts.problem, starts.plans(deadlines_s)
    bounds_j = np.array([starts.bound_j(deadline_s) for deadline_s in deadlines_s])
    is_wide = energies_in_time_j(problem, choices, deadlines_s) > bounds_j * (1 + WIDE)
    if is_wide.any():
        nearby_s = np.unique(np.clip(np.outer(deadlines_s[is_wide], NEARBY), *starts.range_s()))
        sources = np.hstack([choices, starts.plans(nearby_s, depth_first=True)])
        choices[:, is_wide] = spliced(problem, choices[:, is_wide], deadlines_s[is_wide], sources)
    return choices


RESOLUTION = 1e-5
"""Share of the iteration time to which `fastest_within` finds the deadline."""
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
    total energy. Where there are several, one more is the time within which a plan counts as the fastest.
    """
    return frontier_from(Starts(problem), deadlines)


def frontier_from(starts: Starts, deadlines: int) -> list[PlannedIteration]:
    """Plan as `iteration_frontier` does, leaving optima and bounds in `starts`."""
    problem, deadlines_s = starts.problem, _deadlines_s(*starts.range_s(), deadlines)
    choices = search(starts, deadlines_s).T.tolist()
    costs = [problem.cost(choice) for choice in choices]
    return [_planned(starts, choices[n], float(deadlines_s[n]), certified_s=costs[n][0]) for n in pareto_order(costs)]


def _deadlines_s(fastest_s: float, frugal_s: float, deadlines: int) -> Array:
    if deadlines == 1:
        return np.array([fastest_s])
    as_fast_s = min(fastest_s * (1 + AS_FAST), frugal_s)
    return np.union1d(np.linspace(fastest_s, frugal_s, deadlines), as_fast_s)


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
    return plans_from(Starts(problem), deadlines_s)


def plans_from(starts: Starts, deadlines_s: Sequence[float]) -> list[PlannedIteration]:
    """Plan as `plans_within` does, from the optima and with the bounds that earlier calls with `starts` have left.

    Where an optimum is not unique it depends on where the simplex method starts, and with it which of several plans of
    about the same energy is found.
    """
    fastest_s, frugal_s = starts.range_s()
    for deadline_s in deadlines_s:
        if not deadline_s >= fastest_s * (1 - TOLERANCE):
            raise ConfigError(
                f"no plan keeps a deadline of {deadline_s:.6g} s: the fastest takes {fastest_s:.6g} s, and after "
                f"{frugal_s:.6g} s no plan uses less energy; choose a deadline between the two."
            )

    # Each useful deadline is planned for once, and a plan for an earlier one is taken where it costs less.
    useful_s, inverse = np.unique(np.clip(deadlines_s, fastest_s, frugal_s), return_inverse=True)
    choices = search(starts, useful_s).T.tolist()
    costs_j = [starts.problem.cost(choice)[1] for choice in choices]
    best = [min(range(n + 1), key=costs_j.__getitem__) for n in range(len(choices))]
    return [
        _planned(starts, choices[best[n]], deadline_s, certified_s=min(deadline_s, starts.relaxation.slowest_s))
        for n, deadline_s in zip(inverse, deadlines_s, strict=True)
    ]


def cheapest_within(problem: Problem, deadline_s: float) -> PlannedIteration:
    """Plan for one deadline as `plans_within` does."""
    return plans_within(problem, [deadline_s])[0]


def fastest_within(problem: Problem, energy_j: float, between_s: tuple[float, float]) -> PlannedIteration | None:
    """The fastest plan found that uses at most this energy; None where there is none.

    The relaxation says which deadlines are too early for any plan. Those after it are tried, the closer the denser.

    Args:
        problem: what to plan.
        energy_j: of all GPUs over the iteration.
        between_s: makespans to search between: at the lower no plan is known to be that frugal, at the upper one is.
    """
    starts, (low_s, high_s) = Starts(problem), between_s
    reached_s = starts.relaxation.time_s(energy_j)
    if reached_s is None:
        return None
    low_s, closest_s = max(low_s, reached_s), RESOLUTION * high_s
    if low_s + closest_s >= high_s:
        return None

    deadlines_s = low_s + np.geomspace(closest_s, high_s - low_s, ATTEMPTS)[:-1]
    choices = search(starts, deadlines_s).T.tolist()
    costs = [problem.cost(choice) for choice in choices]

    frugal = [n for n, (_, used_j) in enumerate(costs) if used_j <= energy_j]
    if not frugal:
        return None
    best = min(frugal, key=costs.__getitem__)
    return _planned(starts, choices[best], float(deadlines_s[best]), certified_s=costs[best][0])


def sound_bound_j(bound_j: float, energy_j: float) -> float:
    """Return a bound on the energy of a plan that it bounds: of an optimal plan it may be off by rounding errors.

    Raises:
        ArithmeticError: the bound is above the energy, so one of them is wrong.
    """
    if bound_j > energy_j + ROUNDING * abs(energy_j):
        raise ArithmeticError(
            f"a plan uses {energy_j!r} J, and its lower bound is {bound_j!r} J; this is a fault of the solver of "
            "iteration frontiers, so please report it with the configuration of the workload."
        )
    return min(bound_j, energy_j)


def _planned(starts: Starts, choice: Sequence[int], deadline_s: float, certified_s: float) -> PlannedIteration:
    """Return a plan with the bound on all plans whose makespan is at most `certified_s`."""
    time_s, energy_j = starts.problem.cost(choice)
    pairs = zip(starts.problem.point_sets, choice, strict=True)
    return PlannedIteration(
        time_s=time_s,
        energy_j=energy_j,
        deadline_s=deadline_s,
        lower_bound_j=sound_bound_j(starts.bound_j(certified_s), energy_j),
        points=tuple(points.points[c] for points, c in pairs),
    )
