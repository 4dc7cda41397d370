"""The solver without one of its moves, or with one of its constants halved or doubled, and the score of its plans."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from kareus.pipeline.solver import exact, frontier, rounding
from kareus.pipeline.solver.local_search import exchanges, search, splices, trades
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.pipeline.solver.starts import Starts

Array = NDArray[np.float64]
Change = tuple[Any, str, Any]
"""A module or a class, the name of one of its constants or functions, and what it is instead."""
SHORT, MEDIUM, LONG = GROUPS = ("short", "medium", "long")
"""Groups of pipelines: with trades and exchanges, with exchanges and splices, with splices alone."""
DEADLINES = 20
BUDGETS = (5, 10, 15)
"""Indices of the deadlines from whose bounds the energies are made that `fastest_within` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The solver with some changes."""

    name: str
    changes: tuple[Change, ...] = ()
    groups: tuple[str, ...] = GROUPS
    """Groups of pipelines that the changes can affect."""
    is_scaled: bool = False
    """Whether a constant is halved or doubled; else something is left out."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the changes inside this context."""
        with ExitStack() as changes:
            for owner, name, value in self.changes:
                changes.enter_context(mock.patch.object(owner, name, value))
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pipeline, with deadlines from the fastest plan to the cheapest one."""

    problem: Problem
    group: str
    deadlines_s: Array
    bounds_j: Array
    """Optima of the relaxation for the deadlines, the same for all variants."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Plans of one case."""

    gaps: Array
    """Gap of each plan to a bound."""
    cpu_s: float
    """Time that all plans took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Variants that are compared with the first of them."""

    title: str
    score: Callable[[Case], Scored]
    variants: Sequence[Variant]


def case(problem: Problem) -> Case:
    """Set the deadlines of a pipeline, and bound its plans."""
    starts = Starts(problem)
    deadlines_s = np.linspace(*starts.range_s(), DEADLINES)
    bounds_j = [starts.relaxation.solve(deadline_s).energy_j for deadline_s in deadlines_s[::-1]]
    group = MEDIUM if exchanges.exchanges(problem).steps else LONG
    return Case(
        problem=problem,
        group=SHORT if len(problem.point_sets) <= exact.MOST_INSTRUCTIONS else group,
        deadlines_s=deadlines_s,
        bounds_j=np.array(bounds_j[::-1]),
    )


def studies() -> list[Study]:
    """Return the study of relaxation, rounding and local search, that of branch and bound, that of energies."""
    base = Variant(name="as it is")
    noise = Variant(name="other optima of the relaxation", changes=((Starts, "plans", _from_another_basis),))
    exact_groups = (SHORT, MEDIUM)
    return [
        Study(
            title=f"{DEADLINES} deadlines, without branch and bound",
            score=_energy_gaps,
            variants=[base, noise, *_removals(), *_scalings()],
        ),
        Study(
            title="the least makespan alone, with branch and bound",
            score=_first_gap,
            variants=[
                Variant(name="as it is", groups=exact_groups),
                Variant(name="no branch and bound", changes=(_WITHOUT_EXACT,), groups=(SHORT,)),
                *_scaled(exact, "MOST_NODES", _counts(exact.MOST_NODES), (SHORT,)),
                *_scaled(exact, "MOST_INSTRUCTIONS", _counts(exact.MOST_INSTRUCTIONS), exact_groups),
            ],
        ),
        Study(
            title=f"{len(BUDGETS)} energies, gaps in time",
            score=_time_gaps,
            variants=[
                Variant(name="as it is", groups=(SHORT,)),
                *_scaled(frontier, "ATTEMPTS", _counts(frontier.ATTEMPTS), (SHORT,)),
                *_scaled(frontier, "RESOLUTION", (frontier.RESOLUTION / 2, frontier.RESOLUTION * 2), (SHORT,)),
            ],
        ),
    ]


def _removals() -> Iterator[Variant]:
    """Yield the variants of the local search and of rounding that leave something out."""
    spliced = (MEDIUM, LONG)
    yield Variant(name="no exchanges", changes=((exchanges, "EFFORT", 0),), groups=(SHORT, MEDIUM))
    yield Variant(name="no trades", changes=((trades, "STEPS", ()),), groups=(SHORT,))
    for left_out in trades.STEPS:
        steps = tuple(step for step in trades.STEPS if step != left_out)
        name = "no trades of {} against {}".format(*left_out)
        yield Variant(name=name, changes=((trades, "STEPS", steps),), groups=(SHORT,))
    yield Variant(name="no start that aims earlier", changes=((search, "EARLIER", (0.0,)),), groups=(SHORT,))
    yield Variant(name="no splices", changes=((search, "WIDE", math.inf),), groups=spliced)
    yield Variant(name="no plans nearby to splice", changes=((search, "NEARBY", (1.0,)),), groups=spliced)
    yield Variant(name="no shifts of splices", changes=((splices, "SHIFTS", (0.0,)),), groups=spliced)
    yield Variant(name="no SNAP", changes=((rounding, "SNAP", 0.0),))


def _scalings() -> Iterator[Variant]:
    """Yield the variants of the local search and of rounding with a constant halved or doubled."""
    spliced = (MEDIUM, LONG)
    yield from _scaled(exchanges, "EFFORT", _counts(exchanges.EFFORT), (SHORT, MEDIUM))
    yield from _scaled(search, "EARLIER", [tuple(s * f for s in search.EARLIER) for f in (0.5, 2)], (SHORT,))
    yield from _scaled(search, "WIDE", (search.WIDE / 2, search.WIDE * 2), spliced)
    nearby = [tuple(round(1 + (share - 1) * f, 6) for share in search.NEARBY) for f in (0.5, 2)]
    yield from _scaled(search, "NEARBY", nearby, spliced)
    yield from _scaled(splices, "REACH", (1, 2, 6), spliced)
    yield from _scaled(splices, "SHIFTS", [tuple(s * f for s in splices.SHIFTS) for f in (0.5, 2)], spliced)
    yield from _scaled(search, "MOST_INSTRUCTIONS", _counts(search.MOST_INSTRUCTIONS), (SHORT, MEDIUM))
    yield from _scaled(rounding, "SNAP", (rounding.SNAP / 2, rounding.SNAP * 2), GROUPS)
    for count in _counts(len(rounding.LATENESS) - 1):
        # The first share of lateness, for a plan that is in time for certain, has a margin of its own.
        margin = np.array([rounding.MARGIN[0], *np.full(count, rounding.MARGIN[-1])])
        shares = (rounding, "LATENESS", np.array([0.0, *np.linspace(0.0, 1.0, count)]))
        changes = (shares, (rounding, "MARGIN", margin))
        yield Variant(name=f"LATENESS: {count} shares", changes=changes, is_scaled=True)


def _scaled(owner: Any, name: str, values: Sequence[Any], groups: tuple[str, ...]) -> Iterator[Variant]:
    """Yield a variant for each value of a constant."""
    for value in values:
        yield Variant(name=f"{name} = {value}", changes=((owner, name, value),), groups=groups, is_scaled=True)


def _counts(count: int) -> tuple[int, int]:
    """Return half of a count, and twice as many."""
    return count // 2, count * 2


def _energy_gaps(own: Case) -> Scored:
    """Score the energies of the plans for all deadlines."""
    owner, name, value = _WITHOUT_EXACT
    with mock.patch.object(owner, name, value):
        began_s = time.process_time()
        plans = frontier.plans_within(own.problem, own.deadlines_s.tolist())
        cpu_s = time.process_time() - began_s
    return Scored(np.array([plan.energy_j for plan in plans]) / own.bounds_j - 1, cpu_s)


def _first_gap(own: Case) -> Scored:
    """Score the energy at the least makespan."""
    began_s = time.process_time()
    plan = frontier.cheapest_within(own.problem, float(own.deadlines_s[0]))
    cpu_s = time.process_time() - began_s
    return Scored(np.array([plan.energy_j / own.bounds_j[0] - 1]), cpu_s)


def _time_gaps(own: Case) -> Scored:
    """Score the makespans of the plans for some energies, each a thousandth above what the relaxation needs."""
    relaxation, slower, cpu_s = Relaxation(own.problem), [], 0.0
    for energy_j in (own.bounds_j[list(BUDGETS)] * 1.001).tolist():
        least_s = relaxation.time_s(energy_j) or math.nan
        began_s = time.process_time()
        plan = frontier.fastest_within(own.problem, energy_j, (own.deadlines_s[0], own.deadlines_s[-1]))
        cpu_s += time.process_time() - began_s
        slower.append((plan.time_s if plan else own.deadlines_s[-1]) / least_s - 1)
    return Scored(np.array(slower), cpu_s)


_WITHOUT_EXACT: Change = (frontier, "least_energy_plan", lambda problem, choice, deadline_s: choice)
_plans = Starts.plans


def _from_another_basis(starts: Starts, deadlines_s: Array) -> Any:
    """Make plans after solving for the slowest iteration: where optima are many, the simplex method ends in others."""
    starts.relaxation.solve(starts.relaxation.slowest_s)
    return _plans(starts, deadlines_s)
