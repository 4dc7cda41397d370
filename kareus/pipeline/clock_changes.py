"""Changes of clock between the instructions of a stage, and what each of them costs.

A clock that is asked for holds only after a latency, for which the former one runs on. An instruction that begins with
a change therefore does the first part of its work as at the former clock, which takes longer after a lower one and more
energy after a higher one. What a change would save by that (less energy after a lower clock) is not counted, so that no
plan is ever better than with changes that are free, and lower bounds of those hold. An iteration is repeated: its first
instruction follows its last one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from kareus.arrays import Array, Indices
from kareus.gpu_model.gpu import ClockChangeCost
from kareus.gpu_model.waiting import effective_energy_j, total_energy_j, waiting_power_w
from kareus.graph.instruction import InstructionKind
from kareus.graph.records import Direction
from kareus.pareto import Mask
from kareus.pipeline.config import PipelineSlice
from kareus.pipeline.instructions import instructions_of
from kareus.pipeline.methods import point_method
from kareus.pipeline.solver.dag import Dag, earliest_starts_s, iteration_dag

ALIKE = 0.005
"""Share by which costs may differ that measuring does not tell apart."""
NOWHERE = 1e30
"""Seconds and joules of an option that does not exist."""


class PricedChange(NamedTuple):
    """What an instruction takes longer and uses more because it begins with a change of clock; 0 without one."""

    time_s: float
    energy_j: float
    """Of one GPU of its stage."""


class PricedPlans(NamedTuple):
    """Many plans with their changes; each of shape (plans,)."""

    time_s: Array
    energy_j: Array
    """Of all GPUs."""
    changes: Indices
    """Of all stages together."""
    too_close: Indices
    """Changes that come sooner after another one than the machine allows."""


@dataclass(frozen=True, kw_only=True)  # without slots, as arrays of it are looked up by name only
class ClockedPoints:
    """The points of all instructions of an iteration with their clocks, and what each costs after any other clock.

    Options of a kind of instruction are sorted by clock, then time; those that it has not are `NOWHERE`.
    """

    dag: Dag
    clocks_mhz: Indices
    """All clocks that a point has, rising."""
    least_w: float
    """Power of one GPU that waits at the clock at which that is least."""
    gpus: int
    """All of them."""
    gpus_per_stage: int
    above_w: Array
    """By clock, power of all waiting GPUs of a stage above their least; shape (clocks,)."""
    interval_s: float
    """Least time that a stage works between two changes."""
    kinds: Indices
    """Kind of each instruction; shape (instructions,), as the next two."""
    stages: Indices
    before: Indices
    """The instruction that its stage runs before it; the last one before the first."""
    points: Indices
    """`point` of the microbatch frontier; shape (kinds, options), as the next five. -1 where there is no option."""
    offered: Mask
    """Whether a plan may take it. What others of its kind dominate may be of use: at a clock that saves a change."""
    on_frontier: Mask
    """Whether it is on its microbatch frontier, of whose points alone lower bounds are."""
    clocks: Indices
    """Position of the clock in `clocks_mhz`."""
    seconds: Array
    joules: Array
    """Effective energy of all GPUs of the stage."""
    change_s: Array
    """What an option takes longer after each clock; shape (kinds, clocks, options), as the next."""
    change_j: Array
    """Effective energy of all GPUs of the stage."""

    def option(self, points: Sequence[int]) -> Indices:
        """Return the option of each instruction whose `point` is known; shape (instructions,)."""
        same = self.points[self.kinds] == np.asarray(points)[:, np.newaxis]
        options: Indices = same.argmax(axis=1)
        return options

    def prices(self, options: Indices) -> tuple[Array, Array]:
        """Return seconds and effective joules of the changes of plans; each of shape (instructions, plans).

        Args:
            options: of each instruction; shape (instructions, plans).
        """
        kinds = self.kinds[:, np.newaxis]
        former = self.clocks[kinds, options][self.before]
        return self.change_s[kinds, former, options], self.change_j[kinds, former, options]

    def cost(self, options: Indices) -> PricedPlans:
        """Return what plans take with their changes; `options` as in `prices`."""
        kinds = self.kinds[:, np.newaxis]
        clocks = self.clocks[kinds, options]
        is_change = clocks != clocks[self.before]
        longer_s, more_j = self.prices(options)
        times_s = self.seconds[kinds, options] + longer_s
        starts_s = earliest_starts_s(self.dag, times_s)
        time_s: Array = (starts_s + times_s).max(axis=0)
        effective_j: Array = (self.joules[kinds, options] + more_j).sum(axis=0)
        energy_j = total_energy_j(effective_j, time_s, self.gpus * self.least_w)
        if self.above_w.any():
            energy_j = energy_j + self._waited_j(clocks, starts_s, times_s, time_s)
        return PricedPlans(time_s, energy_j, is_change.sum(axis=0), self._too_close(is_change, times_s))

    def _waited_j(self, clocks: Indices, starts_s: Array, times_s: Array, end_s: Array) -> Array:
        """Return what waiting at the clocks of plans takes above the least power of waiting, by plan."""
        ended_s = (starts_s + times_s)[self.before]
        is_first = np.diff(self.stages, prepend=-1) > 0
        ended_s[is_first] = 0.0
        above_w = self.above_w[clocks]
        last = self.before[is_first]
        tails_j = above_w[last] * (end_s - (starts_s + times_s)[last])
        waited_j: Array = (above_w * (starts_s - ended_s)).sum(axis=0) + tails_j.sum(axis=0)
        return waited_j

    def _too_close(self, is_change: Mask, times_s: Array) -> Indices:
        """Return how many changes of each plan come too soon after the one before them."""
        counts = np.zeros(times_s.shape[1], dtype=np.int64)
        for stage in range(self.stages.max() + 1):
            places = np.flatnonzero(self.stages == stage)
            worked_s = np.full(times_s.shape[1], np.inf)
            for turn in range(2):  # the second time round, the first change follows the last one
                for i in places:
                    counts += is_change[i] & (worked_s < self.interval_s) & (turn == 1)
                    worked_s = np.where(is_change[i], 0.0, worked_s) + times_s[i]
        return counts


def clocked_points(config: PipelineSlice, microbatch: pl.DataFrame, method: str) -> ClockedPoints:
    """Return the points of an iteration with their clocks.

    Args:
        config: the pipeline.
        microbatch: a table `MICROBATCH` of its stages, with points for every instruction.
        method: whose plans are made of the points.
    """
    instructions = instructions_of(config)
    kinds = list(dict.fromkeys(i.key.kind for i in instructions))
    number = {kind: n for n, kind in enumerate(kinds)}
    rows = microbatch.filter(pl.col("method") == point_method(method))
    clocks_mhz = np.unique(rows["frequency_mhz"].to_numpy())
    gpus, gpu = config.parallelism.gpus_per_stage, config.gpu
    waiting_w = np.array([waiting_power_w(gpu, clock) for clock in clocks_mhz])
    least_w = float(waiting_w.min())
    options = _options(rows, gpus, least_w)
    widest = max(len(options[kind]) for kind in kinds)
    shape = len(kinds), widest
    points, clocks, offered = np.full(shape, -1), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    on_frontier = np.zeros(shape, dtype=bool)
    seconds, joules = np.full(shape, NOWHERE), np.full(shape, NOWHERE)
    for kind, n in number.items():
        costs_of = np.array(options[kind])
        points[n, : len(costs_of)], clocks[n, : len(costs_of)] = (
            costs_of[:, 1],
            np.searchsorted(clocks_mhz, costs_of[:, 0]),
        )
        seconds[n, : len(costs_of)], joules[n, : len(costs_of)], offered[n, : len(costs_of)] = (
            costs_of[:, 2],
            costs_of[:, 3],
            _offered(costs_of),
        )
        on_frontier[n, : len(costs_of)] = costs_of[:, 4] > 0
    stages = np.array([i.key.stage for i in instructions])
    before = np.empty_like(stages)
    for stage in range(config.parallelism.pp):
        own_stage = np.flatnonzero(stages == stage)
        before[own_stage] = np.roll(own_stage, 1)
    price = config.gpu.clock_change
    change_s, change_j = _changes(price, gpus, len(clocks_mhz), points, clocks, seconds, joules)
    return ClockedPoints(
        dag=iteration_dag(config),
        clocks_mhz=clocks_mhz,
        least_w=least_w,
        gpus=config.parallelism.gpus,
        gpus_per_stage=gpus,
        above_w=gpus * (waiting_w - least_w),
        interval_s=price.interval_s,
        kinds=np.array([number[i.key.kind] for i in instructions]),
        stages=stages,
        before=before,
        points=points,
        offered=offered,
        on_frontier=on_frontier,
        clocks=clocks,
        seconds=seconds,
        joules=joules,
        change_s=change_s,
        change_j=change_j,
    )


def priced_changes(
    config: PipelineSlice, microbatch: pl.DataFrame, method: str, plans: Iterable[Sequence[int]]
) -> list[list[PricedChange]]:
    """Return what the changes of plans cost, by plan and instruction.

    Args:
        config: the pipeline.
        microbatch: the table `MICROBATCH` that the plans are made of.
        method: of the plans.
        plans: `points` of rows of `ITERATION`.
    """
    if config.gpu.clock_change.is_free:
        return [[PricedChange(0.0, 0.0)] * len(points) for points in plans]
    clocked = clocked_points(config, microbatch, method)
    options = np.column_stack([clocked.option(points) for points in plans])
    longer_s, more_j = clocked.prices(options)
    energies_j = more_j / clocked.gpus_per_stage + clocked.least_w * longer_s
    pairs = zip(longer_s.T.tolist(), energies_j.T.tolist(), strict=True)
    return [[PricedChange(*change) for change in zip(*plan, strict=True)] for plan in pairs]


ClockedOption = tuple[int, int, float, float, bool]
"""Clock in MHz, point, seconds, effective joules of all GPUs of the stage, and whether it is on its frontier."""


def _options(rows: pl.DataFrame, gpus: int, least_w: float) -> dict[InstructionKind, list[ClockedOption]]:
    """Return the options of each kind, by rising clock and time."""
    options: dict[InstructionKind, list[ClockedOption]] = {}
    names = ("stage", "chunk", "direction", "frequency_mhz", "point", "time_s", "energy_j", "on_frontier")
    for stage, chunk, direction, mhz, point, time_s, energy_j, is_on in rows.select(names).iter_rows():
        kind = InstructionKind(stage, chunk, Direction(direction))
        effective_j = gpus * effective_energy_j(energy_j, time_s, least_w)
        options.setdefault(kind, []).append((mhz, point, time_s, effective_j, is_on))
    return {
        kind: sorted(of_kind, key=lambda option: (option[0], option[2], option[1])) for kind, of_kind in options.items()
    }


def _offered(options: Array) -> Mask:
    """Return which options of a kind a plan may take: those on the frontier, and what one of these dominates.

    At the power limit an instruction costs the same at several clocks, of which the lowest is on the frontier.
    """
    on = options[options[:, 4] > 0]
    seconds, joules = (options[:, column, np.newaxis] * (1 + ALIKE) for column in (2, 3))
    as_good = (on[:, 2] <= seconds) & (on[:, 3] <= joules)
    offered: Mask = (options[:, 4] > 0) | as_good.any(axis=1)
    return offered


def _changes(
    price: ClockChangeCost, gpus: int, count: int, points: Indices, clocks: Indices, seconds: Array, joules: Array
) -> tuple[Array, Array]:
    """Return what every option takes longer and uses more after each of `count` clocks."""
    change_s, change_j = np.zeros((2, len(points), count, points.shape[1]))
    for kind in range(len(points)):
        offered = np.flatnonzero(points[kind] >= 0)
        present, first = np.unique(clocks[kind, offered], return_index=True)  # the fastest point at each clock
        nearest = first[np.abs(present - np.arange(count)[:, np.newaxis]).argmin(axis=1)]
        former_s, former_j = seconds[kind, nearest][:, np.newaxis], joules[kind, nearest][:, np.newaxis]
        share = np.minimum(1.0, price.latency_s / former_s)  # of the work that is done as at the former clock
        is_change = clocks[kind, offered] != np.arange(count)[:, np.newaxis]
        missed_s = np.maximum(0.0, share * (former_s - seconds[kind, offered]))
        missed_j = np.maximum(0.0, share * (former_j - joules[kind, offered]))
        change_s[kind][:, offered] = np.where(is_change, price.pause_s + missed_s, 0.0)
        change_j[kind][:, offered] = np.where(is_change, gpus * price.energy_j + missed_j, 0.0)
    return change_s, change_j
