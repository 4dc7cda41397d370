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

from kareus.pipeline.solver import beam, frontier, search, splices
from kareus.pipeline.solver.problem import Problem
from kareus.pipeline.solver.relaxation import Relaxation
from kareus.pipeline.solver.starts import Starts

Array = NDArray[np.float64]
Change = tuple[Any, str, Any]
"""A module or a class, the name of one of its constants or functions, and what it is instead."""
SHORT, MEDIUM, LONG = GROUPS = ("short", "medium", "long")
"""Groups of pipelines by their number of instructions; see `MOST`."""
MOST = {SHORT: 64, MEDIUM: 187}
"""Instructions that pipelines of a group have at most."""
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
    count = len(problem.point_sets)
    return Case(
        problem=problem,
        group=next((group for group, most in MOST.items() if count <= most), LONG),
        deadlines_s=deadlines_s,
        bounds_j=np.array(bounds_j[::-1]),
    )


def studies() -> list[Study]:
    """Return the study of relaxation, beams and splices, and that of energies."""
    base = Variant(name="as it is")
    noise = Variant(name="other optima of the relaxation", changes=((Starts, "plans", _from_another_basis),))
    return [
        Study(
            title=f"{DEADLINES} deadlines",
            score=_energy_gaps,
            variants=[base, noise, *_removals(), *_scalings()],
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
    """Yield the variants that leave something out."""
    yield Variant(name="no splices", changes=((search, "WIDE", math.inf),))
    yield Variant(name="no plans nearby to splice", changes=((search, "NEARBY", (1.0,)),))
    yield Variant(name="no shifts of splices", changes=((splices, "SHIFTS", (0.0,)),))
    yield Variant(name="no charge for straying", changes=((beam, "STRAY", 0.0),))
    yield Variant(name="no points near the relaxation's but one", changes=((beam, "NEAREST", 1),))


def _scalings() -> Iterator[Variant]:
    """Yield the variants with a constant halved or doubled."""
    for owner, name in ((beam, "EFFORT"), (beam, "STRAY"), (beam, "ALIKE"), (search, "WIDE")):
        value = getattr(owner, name)
        yield from _scaled(owner, name, (value / 2, value * 2), GROUPS)
    yield from _scaled(beam, "CHEAPEST", (2, 6), GROUPS)
    yield from _scaled(beam, "WIDTHS", [tuple(w * f for w in beam.WIDTHS) for f in (0.5, 2)], GROUPS)
    nearby = [tuple(round(1 + (share - 1) * f, 6) for share in search.NEARBY) for f in (0.5, 2)]
    yield from _scaled(search, "NEARBY", nearby, GROUPS)
    yield from _scaled(splices, "REACH", (1, 2, 6), GROUPS)
    yield from _scaled(splices, "SHIFTS", [tuple(s * f for s in splices.SHIFTS) for f in (0.5, 2)], GROUPS)


def _scaled(owner: Any, name: str, values: Sequence[Any], groups: tuple[str, ...]) -> Iterator[Variant]:
    """Yield a variant for each value of a constant."""
    for value in values:
        yield Variant(name=f"{name} = {value}", changes=((owner, name, value),), groups=groups, is_scaled=True)


def _counts(count: int) -> tuple[int, int]:
    """Return half of a count, and twice as many."""
    return count // 2, count * 2


def _energy_gaps(own: Case) -> Scored:
    """Score the energies of the plans for all deadlines."""
    began_s = time.process_time()
    plans = frontier.plans_within(own.problem, own.deadlines_s.tolist())
    cpu_s = time.process_time() - began_s
    return Scored(np.array([plan.energy_j for plan in plans]) / own.bounds_j - 1, cpu_s)


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


_plans = Starts.plans


def _from_another_basis(starts: Starts, deadlines_s: Array, **order: bool) -> Any:
    """Make plans after solving for the slowest iteration: where optima are many, the simplex method ends in others."""
    starts.relaxation.solve(starts.relaxation.slowest_s)
    return _plans(starts, deadlines_s, **order)
