"""Microbatch frontiers: every point that an instruction of a stage can run at, by method.

Sequential execution competes with partitioned overlap at every frequency (execution model switching), so
the frontier of `kareus` is the Pareto set of the union.

At its power limit a GPU runs alike whichever of the highest clocks is asked for. Points that cannot be told apart but
by a clock that was not reached are merged: the lowest such clock stands for all.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.frontiers.compose import ComposedPoint, Option, RepeatedPartition, compose, effective
from kareus.frontiers.makeup import ExecutionCost, Makeup, cost_of_parts
from kareus.pareto import pareto_mask
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice

DISTINCT = 2.0
"""Standard errors of a difference from which on two costs are told apart: 95 of 100 equal ones are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One way to run an instruction."""

    execution: Execution
    frequency_mhz: int
    time_s: float
    energy_j: float
    choices: tuple[Choice, ...] = ()
    is_thinned: bool = False
    """Whether non-dominated points of its clock were left out (see `ComposedPoint`)."""
    time_error_s: float = 0.0
    """Standard error from the noise of measuring, as the next; 0 where costs are known."""
    energy_error_j: float = 0.0
    is_power_limited: bool = False
    """Whether the power limit kept the GPU below the clock, in a part of the instruction at least."""

    @property
    def cost(self) -> ExecutionCost:
        """What it costs, however it runs."""
        return ExecutionCost(*(getattr(self, name) for name in ExecutionCost._fields))

    def differs_from(self, other: "Point") -> bool:
        """Whether measurements tell the costs of two points apart."""
        time_s = math.hypot(self.time_error_s, other.time_error_s)
        energy_j = math.hypot(self.energy_error_j, other.energy_error_j)
        return (
            abs(self.time_s - other.time_s) > DISTINCT * time_s
            or abs(self.energy_j - other.energy_j) > DISTINCT * energy_j
        )


def overlap_points(
    makeup: Makeup,
    options: Mapping[str, Mapping[int, tuple[Option, ...]]],
    components: Mapping[str, Mapping[int, ExecutionCost]],
    missed: Mapping[int, ExecutionCost],
    blocking_power_w: float,
) -> list[Point]:
    """Points of partitioned overlap, at every frequency at which all partitions were measured.

    Args:
        makeup: what the instruction consists of.
        options: measured options by partition and frequency.
        components: measured costs by component and frequency.
        missed: what isolated parts miss of the instruction, by frequency.
        blocking_power_w: what waiting for other stages draws.
    """
    frequencies = set.intersection(*(set(options.get(name, {})) for name in makeup.partitions))
    points = []
    for frequency_mhz in sorted(frequencies):
        parts = [
            RepeatedPartition(multiplicity=n, options=options[name][frequency_mhz])
            for name, n in makeup.partitions.items()
        ]
        rest = [
            cost_of_parts({**makeup.edges, **makeup.outer}, components, frequency_mhz),
            missed[frequency_mhz],
        ]
        points += [_point(composed, rest, frequency_mhz) for composed in compose(parts, blocking_power_w)]
    return points


def _point(composed: ComposedPoint, rest: Sequence[ExecutionCost], frequency_mhz: int) -> Point:
    return Point(
        execution=Execution.OVERLAP,
        frequency_mhz=frequency_mhz,
        time_s=composed.time_s + sum(cost.time_s for cost in rest),
        energy_j=composed.energy_j + sum(cost.energy_j for cost in rest),
        choices=composed.choices,
        is_thinned=composed.is_thinned,
        time_error_s=math.hypot(composed.time_error_s, *(cost.time_error_s for cost in rest)),
        energy_error_j=math.hypot(composed.energy_error_j, *(cost.energy_error_j for cost in rest)),
        is_power_limited=composed.is_power_limited or any(cost.is_power_limited for cost in rest),
    )


def frontier(points: Sequence[Point], blocking_power_w: float) -> list[Point]:
    """The points that no other dominates in (time, effective energy), by rising time; merged ones are left out."""
    mask = frontier_mask(points, blocking_power_w)
    return sorted((p for p, kept in zip(points, mask, strict=True) if kept), key=lambda p: p.time_s)


def frontier_mask(points: Sequence[Point], blocking_power_w: float) -> list[bool]:
    """Return for each point whether it is on the frontier; those that are merged into another one are not."""
    kept = [number for number, is_merged in enumerate(_merged(points)) if not is_merged]
    costs = np.array([(points[number].time_s, points[number].energy_j) for number in kept]).reshape(-1, 2)
    on_frontier = {n for n, on in zip(kept, pareto_mask(effective(costs, blocking_power_w)), strict=True) if on}
    return [number in on_frontier for number in range(len(points))]


def _merged(points: Sequence[Point]) -> list[bool]:
    """Whether each point is at its power limit and no other than one of a lower clock that runs the same way."""
    standing: dict[tuple[Execution, tuple[Choice, ...]], list[Point]] = defaultdict(list)
    merged = [False] * len(points)
    for number in sorted(range(len(points)), key=lambda n: points[n].frequency_mhz):
        point = points[number]
        if not point.is_power_limited:
            continue
        alike = standing[point.execution, point.choices]
        merged[number] = not all(point.differs_from(other) for other in alike)
        if not merged[number]:
            alike.append(point)
    return merged
