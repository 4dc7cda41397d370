"""The problem of iteration frontiers: instructions, and the real points each can run at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from kareus.arrays import Array, Indices
from kareus.errors import ArtifactError
from kareus.pipeline.iteration import clocked_iteration_cost, iteration_cost
from kareus.pipeline.solver.dag import Dag

MOST_S = 1e9
"""Of one instruction: thirty years."""
MOST_J = 1e15
"""Of one instruction on all GPUs of its stage: a million of them at a kilowatt for eleven days."""
_ALIKE: Mapping[int, float] = MappingProxyType({})
"""Nothing above the least power of waiting, at any point."""


@dataclass(frozen=True, slots=True)
class PointSet:
    """Points of one instruction that no other dominates: times rise, energies fall. Index 0 is the fastest."""

    points: tuple[int, ...]
    """`point` of the microbatch frontier."""
    times_s: tuple[float, ...]
    energies_j: tuple[float, ...]
    """Effective energy, of all GPUs of the stage."""
    waiting_above_w: tuple[float, ...] = ()
    """Power of all GPUs of the stage that wait for the instruction at its clock, above their least (their part of
    `Problem.waiting_power_w`); empty where waiting draws the same at all clocks."""
    seconds: Array = field(init=False, repr=False, compare=False)
    """`times_s` as an array, for timing many plans at once; floats are faster for one."""
    joules: Array = field(init=False, repr=False, compare=False)
    """`energies_j` as an array."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", np.array(self.times_s))
        object.__setattr__(self, "joules", np.array(self.energies_j))

    @property
    def hull(self) -> tuple[int, ...]:
        """Indices of the points on the lower convex hull, by rising time."""
        kept: list[int] = []
        for i in range(len(self.times_s)):
            while len(kept) > 1 and self._slope_j_per_s(kept[-2], kept[-1]) >= self._slope_j_per_s(kept[-1], i):
                kept.pop()
            kept.append(i)
        return tuple(kept)

    def _slope_j_per_s(self, left: int, right: int) -> float:
        return (self.energies_j[right] - self.energies_j[left]) / (self.times_s[right] - self.times_s[left])


def point_set(points: Sequence[tuple[int, float, float]], waiting_above_w: Mapping[int, float] = _ALIKE) -> PointSet:
    """Build a set of (point, seconds, joules of all GPUs of the stage), dropping what others dominate.

    Args:
        points: what an instruction may run at.
        waiting_above_w: by point, as `PointSet` has it; none where waiting draws the same at all clocks.

    Raises:
        ArtifactError: there are no points, or one has a time or an energy that nothing can have.
    """
    if not points:
        raise ArtifactError("an instruction has no points; every one needs at least one; rerun the stage 'frontier'.")
    for number, time_s, energy_j in points:
        if not (0 <= time_s <= MOST_S and abs(energy_j) <= MOST_J):  # so written, it refuses NaN too
            raise ArtifactError(
                f"point {number} of an instruction takes {time_s} s and {energy_j} J; times must be from 0 to "
                f"{MOST_S:g} s, energies at most {MOST_J:g} J; check the GPU's numbers and rerun the stage 'frontier'."
            )
    kept: list[tuple[int, float, float]] = []
    for point in sorted(points, key=lambda p: (p[1], p[2], p[0])):
        if not kept or point[2] < kept[-1][2]:
            kept.append(point)
    numbers, times_s, energies_j = zip(*kept, strict=True)
    return PointSet(numbers, times_s, energies_j, tuple(waiting_above_w[n] for n in numbers if waiting_above_w))


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTable:
    """Points of all kinds of instructions one after the other, to look up those of many instructions at once."""

    seconds: Array
    joules: Array
    first: Indices
    """By instruction, the index of its fastest point; shape (instructions, 1)."""
    slowest: Indices
    """By instruction, the number of its slowest point, counted from its fastest; shape (instructions, 1)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Choose one point for every instruction: the less energy the better, within a deadline."""

    dag: Dag
    point_sets: tuple[PointSet, ...]
    """By instruction; equal instructions share one object."""
    waiting_power_w: float
    """Least power of all GPUs that wait: what a second of iteration time costs besides effective energy."""
    stages: tuple[tuple[int, ...], ...] = ()
    """Numbers of the instructions of each stage, in order; needed where waiting depends on the clock."""
    table: PointTable = field(init=False, repr=False, compare=False)
    """`point_sets` in arrays."""

    def __post_init__(self) -> None:
        if not self.stages and any(points.waiting_above_w for points in self.distinct):
            raise ValueError("a problem whose waiting depends on clocks needs the instructions of each stage")
        object.__setattr__(self, "table", self._table())

    @property
    def distinct(self) -> tuple[PointSet, ...]:
        """The objects that are in `point_sets`, each once: one for each kind of instruction."""
        return tuple({id(points): points for points in self.point_sets}.values())

    def times_s(self, choice: Sequence[int]) -> list[float]:
        """Seconds of each instruction under `choice`, an index into each instruction's point set."""
        return [points.times_s[c] for points, c in zip(self.point_sets, choice, strict=True)]

    def effective_energy_j(self, choice: Sequence[int]) -> float:
        """Joules of all instructions over all GPUs, without what waiting costs."""
        return sum(points.energies_j[c] for points, c in zip(self.point_sets, choice, strict=True))

    def cost(self, choice: Sequence[int]) -> tuple[float, float]:
        """Iteration time in seconds and energy of all GPUs in joules, each waiting at the clock of its instructions."""
        chosen = list(zip(self.point_sets, choice, strict=True))
        times_s, effective_j = self.times_s(choice), [points.energies_j[c] for points, c in chosen]
        if not any(points.waiting_above_w for points in self.distinct):
            return iteration_cost(self.dag, times_s, effective_j, self.waiting_power_w)
        above_w = [points.waiting_above_w[c] if points.waiting_above_w else 0.0 for points, c in chosen]
        return clocked_iteration_cost(self.dag, times_s, effective_j, self.waiting_power_w, self.stages, above_w)

    def waits_after_w(self, points: Sequence[int]) -> float:
        """Watts of all GPUs that wait after a plan of these `points`, each at the clock of its last instruction."""
        sets = [(self.point_sets[lane[-1]], points[lane[-1]]) for lane in self.stages]
        return self.waiting_power_w + sum(
            point_set.waiting_above_w[point_set.points.index(point)]
            for point_set, point in sets
            if point_set.waiting_above_w
        )

    def _table(self) -> PointTable:
        kinds = self.distinct
        firsts = np.cumsum([0, *(len(points.times_s) for points in kinds)])
        place = {id(points): (first, len(points.times_s) - 1) for points, first in zip(kinds, firsts, strict=False)}
        places = np.array([place[id(points)] for points in self.point_sets])
        return PointTable(
            seconds=np.concatenate([points.seconds for points in kinds]),
            joules=np.concatenate([points.joules for points in kinds]),
            first=places[:, :1],
            slowest=places[:, 1:],
        )
