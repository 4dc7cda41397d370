"""The GPU model: time, energy and mean clock of programs and partitions at requested clocks, under the power limit."""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.gpu_model import energy
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.gpu_model.elements import elements_where
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.norms import host_joined_s, longer_s
from kareus.gpu_model.overlap import Phase, along_phases, host_time_s, step_phases
from kareus.gpu_model.power_limit import LEAST_CLOCK_MHZ, CostRows, fluctuating, over_limit
from kareus.gpu_model.stragglers import with_slowest
from kareus.graph.records import Collective, Operator, Partition, Program, Step

ROUNDING = 1e-9
"""Relative error of a mean clock that counts as rounding."""
REPEATING = 4
"""Blocks of an instruction from which each further one adds the same steps: of the first two and the last two what is
beside them may differ (a gather runs a block ahead, a reduction a block behind)."""
GRID_CLOCKS = 25
"""Clocks between which costs of a program are interpolated where the power limit holds it back."""

KnownSteps = dict[tuple[Step, tuple[int, ...], bytes], CostRows]
"""Costs by step and clocks."""
Blocks = int | NDArray[np.int64]
"""Blocks that an instruction has more than were counted: one number, or several, [numbers]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One execution on one GPU at each requested clock, at the reference temperature, free of noise."""

    time_s: Array
    energy_j: Array
    mean_clock_mhz: Array
    """Mean of the clock over time; below the requested one if the power limit pulled it down."""
    power_limited: NDArray[np.bool_]

    @property
    def power_w(self) -> Array:
        """Mean power."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of executions of each step of a program, which decides its cost."""

    blocks: Counter[Step]
    """Steps in transformer blocks of a whole instruction."""
    outer: Counter[Step]
    """All other steps."""
    whole_instruction: bool

    @property
    def steps(self) -> Counter[Step]:
        """All steps."""
        return self.blocks + self.outer


@dataclass(frozen=True, slots=True)
class CountedCosts:
    """Costs of some steps, and how often each runs."""

    counts: NDArray[np.int64]
    added: NDArray[np.int64]
    """How much more often each runs with a further block."""
    costs: Array
    """Shape (steps, 3, clocks)."""
    host_s: Sequence[Array | float]
    """Time in which the host launches each."""

    def total(self, blocks: Blocks) -> CostRows:
        """Return the cost of all steps, with so many blocks more; shape (3, clocks), or (3, numbers, clocks)."""
        repeats, costs = self._repeats(blocks), self.costs if np.ndim(blocks) == 0 else self.costs[:, :, np.newaxis]
        weights = repeats.reshape(len(repeats), 1, *np.shape(blocks), *(1,) * (self.costs.ndim - 2))
        return (weights * costs).sum(axis=0)  # type: ignore[no-any-return]

    def host_total_s(self, blocks: Blocks) -> Array | float:
        """Return the time in which the host launches all steps, with so many blocks more; of many (numbers, 1)."""
        repeats = self._repeats(blocks)
        counts = repeats.tolist() if np.ndim(blocks) == 0 else repeats[..., np.newaxis]
        return sum(n * s for n, s in zip(counts, self.host_s, strict=True))  # type: ignore[no-any-return]

    def _repeats(self, blocks: Blocks) -> NDArray[np.int64]:
        return self.counts.reshape(-1, *(1,) * np.ndim(blocks)) + np.multiply.outer(self.added, blocks)


@dataclass(frozen=True)  # without slots, so that what is asked for is kept
class PartSums:
    """What steps of a part of an instruction take, before power limit and host; programs share parts."""

    gpu: Gpu
    counted: Counter[Step]
    """The steps; of `REPEATING` blocks, where more are asked for."""
    requested_mhz: Array
    step_costs: KnownSteps
    fewer: Counter[Step] | None = None
    """Those of one block less. From `REPEATING` on each further block adds the same steps: only the first and the last
    blocks differ from others, by what is beside them."""

    @cached_property
    def requested(self) -> CountedCosts:
        """At the requested clocks."""
        return self._costs(Counter, self.requested_mhz)

    @cached_property
    def alone(self) -> CountedCosts:
        """Operators alone, where they miss something of a whole instruction; else none."""
        return self._costs(operators_alone if self.gpu.isolates else lambda _: Counter(), self.requested_mhz)

    @cached_property
    def on_grid(self) -> CountedCosts:
        """At the clocks of `_grid_mhz`: only a power limit over more than a step asks for them."""
        return self._costs(Counter, _grid_mhz(self.gpu, self.requested_mhz))

    def _costs(self, steps: Callable[[Counter[Step]], Counter[Step]], clocks_mhz: Array) -> CountedCosts:
        repeats, less = steps(self.counted), steps(self.counted if self.fewer is None else self.fewer)
        of_steps = [known_step_cost(self.gpu, step, clocks_mhz, self.step_costs) for step in repeats]
        return CountedCosts(
            np.array(list(repeats.values()), dtype=np.int64),
            np.array([count - less[step] for step, count in repeats.items()], dtype=np.int64),
            np.array(of_steps).reshape(len(repeats), 3, *clocks_mhz.shape),
            [sum(host_time_s(self.gpu, part.operators, part.collective) for part in step.parts) for step in repeats],
        )


@dataclass(frozen=True, slots=True)
class Sums:
    """What the steps of a tally take, before power limit and host: with further blocks they only run more often."""

    blocks: PartSums
    outer: PartSums
    whole_instruction: bool


def tally(program: Program) -> Tally:
    """Return the number of executions of each step of `program`."""
    first, last = program.blocks or (0, 0)
    outer = Counter(program.steps[:first]) + Counter(program.steps[last:])
    return Tally(Counter(program.steps[first:last]), outer, program.blocks is not None)


def run_program(
    gpu: Gpu, program: Program, frequency_mhz: Array | float, step_costs: KnownSteps | None = None
) -> Behaviour:
    """Return what one execution of `program` does at each requested clock; `step_costs` as in `run_tally`."""
    return run_tally(gpu, tally(program), frequency_mhz, {} if step_costs is None else step_costs)


def run_tally(gpu: Gpu, counted: Tally, frequency_mhz: Array | float, step_costs: KnownSteps) -> Behaviour:
    """Return what `run_program` does, for a program whose steps have been counted.

    In this order: the work of its steps, the power limit, the host, and what isolated steps miss of an instruction.

    Args:
        gpu: GPU that runs it.
        counted: steps of the program.
        frequency_mhz: requested clocks.
        step_costs: costs of steps on this GPU, read and extended; programs of one workload share most of their steps.
    """
    requested_mhz = np.asarray(frequency_mhz, dtype=np.float64)
    blocks, outer = (PartSums(gpu, steps, requested_mhz, step_costs) for steps in (counted.blocks, counted.outer))
    return run_sums(gpu, Sums(blocks, outer, counted.whole_instruction), requested_mhz)


def run_sums(gpu: Gpu, sums: Sums, requested_mhz: Array, blocks: Blocks = 0) -> Behaviour:
    """Return what `run_tally` does of steps that were summed at these clocks, with so many further blocks.

    Of several numbers of blocks arrays have the shape (numbers, clocks), all as of each number by itself.
    """
    parts = sums.blocks.requested, sums.outer.requested
    if not sum(len(part.counts) for part in parts):
        return behaviour_of(np.zeros((3, *np.shape(blocks), *requested_mhz.shape)), requested_mhz)
    of_blocks, of_outer = (part.total(blocks) for part in parts)
    free = of_blocks + of_outer
    cost = free
    if gpu.coefficients.limiter_s and over_limit(gpu, free).any():
        on_grid = sums.blocks.on_grid.total(blocks) + sums.outer.on_grid.total(blocks)
        cost = _limited(gpu, on_grid, requested_mhz, free)
    cost = with_slowest(gpu, free, cost)
    if gpu.launches_ahead is not LaunchesAhead.STEP:
        blocks_s, outer_s = (part.host_total_s(blocks) for part in parts)
        cost = _launched(gpu, requested_mhz, cost, (of_blocks[0], of_outer[0]), (blocks_s, outer_s))
    steps = behaviour_of(cost, requested_mhz)
    if not sums.whole_instruction:
        return steps
    alone = sums.blocks.alone.total(blocks)
    missed_s, missed_j = gpu.missed_by_isolation(alone[0], alone[1])
    missed_s = np.maximum(missed_s, missed_j / gpu.throttling_power_w)  # it is held to the limit, too
    return replace(steps, time_s=steps.time_s + missed_s, energy_j=steps.energy_j + missed_j)


def _grid_mhz(gpu: Gpu, requested_mhz: Array) -> Array:
    """Clocks between which costs are interpolated; GPUs that differ in coefficients have an axis of their own."""
    grid_mhz = np.linspace(min(LEAST_CLOCK_MHZ, float(requested_mhz.min())), gpu.maximum_clock_mhz, GRID_CLOCKS)
    return np.broadcast_to(grid_mhz, (*requested_mhz.shape[:-1], GRID_CLOCKS))


def _limited(gpu: Gpu, costs: CostRows, requested_mhz: Array, free: CostRows) -> CostRows:
    """Return the cost of steps that exceed the power limit, where that means power over longer than they take.

    Products may then draw more than the limit, since what HBM bounds draws less. Elsewhere steps have been held to it.

    Args:
        gpu: GPU whose limit applies.
        costs: of the steps at the clocks of `_grid_mhz`.
        requested_mhz: requested clocks.
        free: cost of the steps there without a limit.
    """
    grid_mhz = _grid_mhz(gpu, requested_mhz)

    def steady(clock_mhz: Array) -> CostRows:
        if grid_mhz.ndim == 1:
            every = costs.reshape(-1, GRID_CLOCKS)
            clocks_mhz = np.broadcast_to(clock_mhz, free.shape).reshape(len(every), -1)
            pairs = zip(clocks_mhz, every, strict=True)
            return np.array([np.interp(clocks, grid_mhz, row) for clocks, row in pairs]).reshape(free.shape)
        places = np.interp(clock_mhz, grid_mhz.reshape(-1, GRID_CLOCKS)[0], np.arange(GRID_CLOCKS))
        below = np.minimum(places.astype(np.int64), GRID_CLOCKS - 2)
        rows = np.broadcast_to(below, (3, *below.shape))
        low, high = (np.take_along_axis(costs, rows + n, axis=-1) for n in (0, 1))
        interpolated: CostRows = low + (places - below) * (high - low)
        return interpolated

    return fluctuating(gpu, steady, requested_mhz, free)


def _launched(
    gpu: Gpu,
    requested_mhz: Array,
    cost: CostRows,
    free_s: tuple[Array, Array],
    host_s: tuple[Array | float, Array | float],
) -> CostRows:
    """Return the cost of steps with what their host adds, which launches ahead of more than a step.

    The times of steps in blocks and of all others, `free_s`, are those without a power limit, which lengthens both
    alike; `host_s` are those of their host.
    """
    has_both = all(seconds.any() for seconds in free_s)
    if gpu.launches_ahead is LaunchesAhead.PASS or not has_both:
        return _until(gpu, host_joined_s(cost[0], host_s[0] + host_s[1]), requested_mhz, cost)
    in_blocks_s = cost[0] * free_s[0] / (free_s[0] + free_s[1])
    joined_s = host_joined_s(in_blocks_s, host_s[0]) + host_joined_s(cost[0] - in_blocks_s, host_s[1])
    return _until(gpu, joined_s, requested_mhz, cost)


def _until(gpu: Gpu, joined_s: Array, requested_mhz: Array, cost: CostRows) -> CostRows:
    """Return a cost with as much idling as makes it take `joined_s`."""
    waiting_s = joined_s - cost[0]
    return cost + _row(waiting_s, energy.idle_power_w(gpu, requested_mhz) * waiting_s, requested_mhz)


def operators_alone(steps: Counter[Step]) -> Counter[Step]:
    """Return the operators of steps with no collective beside or after them."""
    alone: Counter[Step] = Counter()
    for step, count in steps.items():
        for part in step.parts:
            if part.operators:
                alone[Step(operators=part.operators)] += count
    return alone


def known_step_cost(gpu: Gpu, step: Step, requested_mhz: Array, step_costs: KnownSteps) -> CostRows:
    """Return what `step_cost` does, taken from `step_costs` or added to it."""
    key = (step, requested_mhz.shape, requested_mhz.tobytes())
    if key not in step_costs:
        if step.along:
            host_s = sum(host_time_s(gpu, part.operators, part.collective) for part in step.parts)
            step_costs[key] = _phases_cost(gpu, along_phases(gpu, step, requested_mhz), requested_mhz, host_s)
        elif len(step.operators) > 1 and step.collective is None and gpu.launches_ahead is not LaunchesAhead.STEP:
            alone = (Step(operators=(each,)) for each in step.operators)
            costs = (known_step_cost(gpu, each, requested_mhz, step_costs) for each in alone)  # each is in many steps
            step_costs[key] = functools.reduce(operator.add, costs)
        else:
            step_costs[key] = step_cost(gpu, step.operators, step.collective, requested_mhz, step.sm_count, step.launch)
    return step_costs[key]


def run_schedules(
    gpu: Gpu, partition: Partition, frequency_mhz: Array, sm_count: Array, launch_index: Array
) -> Behaviour:
    """Return what one execution of `partition` does under each of many execution schedules.

    Args:
        gpu: GPU that runs it.
        partition: operators and their collective.
        frequency_mhz: requested clock of each schedule, shape (n,), or of any shapes that broadcast, as the next two.
        sm_count: SMs of the collective.
        launch_index: index of the operator with which the collective starts.
    """
    operators, collective = partition.operators, partition.collective
    if not gpu.coefficients.limiter_s:
        cost = step_cost(gpu, operators, collective, frequency_mhz, sm_count, launch_index)
        return behaviour_of(cost, frequency_mhz)
    phases = step_phases(gpu, operators, collective, frequency_mhz, sm_count, launch_index)
    free = _steady_sum(gpu, phases, frequency_mhz, frequency_mhz)
    cost = with_slowest(gpu, free, _brought_within(gpu, phases, frequency_mhz, free.copy()))
    if gpu.launches_ahead is not LaunchesAhead.STEP:
        joined_s = host_joined_s(cost[0], host_time_s(gpu, operators, collective))
        cost = _until(gpu, joined_s, frequency_mhz, cost)
    return behaviour_of(cost, frequency_mhz)


def step_cost(
    gpu: Gpu,
    operators: Sequence[Operator],
    collective: Collective | None,
    frequency_mhz: Array,
    sm_count: Array | int,
    launch_index: Array | int,
) -> CostRows:
    """Return the cost of a step; arguments as in `step_phases`.

    Where the limit acts at once (`limiter_s` is 0), every phase of it is held to it by itself: a GEMM that a collective
    joins draws more than the step does on average, and it is then that the clock falls. Where the host does not launch
    ahead of the step, whichever of both takes longer decides.
    """
    phases = step_phases(gpu, operators, collective, frequency_mhz, sm_count, launch_index)
    return _phases_cost(gpu, phases, frequency_mhz, host_time_s(gpu, operators, collective))


def _phases_cost(gpu: Gpu, phases: Sequence[Phase], frequency_mhz: Array, host_s: Array | float) -> CostRows:
    """Return the cost of the phases of a step, whose kernels the host launches in `host_s`."""
    if gpu.coefficients.limiter_s:
        cost = _steady_sum(gpu, phases, frequency_mhz, frequency_mhz)
    else:
        cost = functools.reduce(operator.add, [limited_cost(gpu, [phase], frequency_mhz) for phase in phases])
    if gpu.launches_ahead is not LaunchesAhead.STEP:
        return cost
    return _until(gpu, longer_s(cost[0], host_s), frequency_mhz, cost)


def limited_cost(gpu: Gpu, phases: Sequence[Phase], requested_mhz: Array) -> CostRows:
    """Return the cost of phases, of the shape of all candidates, whose mean power is held to the limit."""
    return _brought_within(gpu, phases, requested_mhz, _steady_sum(gpu, phases, requested_mhz, requested_mhz))


def _brought_within(gpu: Gpu, phases: Sequence[Phase], requested_mhz: Array, requested: CostRows) -> CostRows:
    """Return costs of phases at requested clocks, overwritten where they exceed the limit."""
    over = over_limit(gpu, requested)
    if over.all():
        return fluctuating(gpu, functools.partial(_steady_sum, gpu, phases, requested_mhz), requested_mhz, requested)
    if over.any():
        # Finding the clocks that hold the limit takes ten evaluations of the laws: only where it is exceeded.
        hot = elements_where(over)
        hot_gpu, hot_mhz = hot.gpu(gpu), hot.of(requested_mhz)
        steady = functools.partial(_steady_sum, hot_gpu, [hot.phase(phase) for phase in phases], hot_mhz)
        requested[:, over] = fluctuating(hot_gpu, steady, hot_mhz, requested[:, over])
    return requested


def _steady_sum(gpu: Gpu, phases: Sequence[Phase], requested_mhz: Array, clock_mhz: Array) -> CostRows:
    return functools.reduce(operator.add, [_steady_cost(gpu, phase, requested_mhz, clock_mhz) for phase in phases])


def _steady_cost(gpu: Gpu, phase: Phase, requested_mhz: Array, clock_mhz: Array) -> CostRows:
    """Cost of a phase at a steady clock, whatever it draws."""
    time_s = phase.at_s(requested_mhz, clock_mhz)
    held_j = energy.held_power_w(gpu, phase.held_sms, clock_mhz) * time_s
    return _row(time_s, phase.switching.busy_j(gpu, clock_mhz, time_s, phase.clocked) + held_j, clock_mhz)


def _row(time_s: Array, energy_j: Array, clock_mhz: Array) -> CostRows:
    row = np.empty((3, *np.shape(energy_j)))  # an energy depends on all, so that it has the shape of all
    row[0], row[1], row[2] = time_s, energy_j, clock_mhz * time_s
    return row


def behaviour_of(cost: CostRows, requested_mhz: Array) -> Behaviour:
    """Return the behaviour that has this cost at requested clocks."""
    time_s, energy_j, megacycles = cost
    mean_clock_mhz = np.where(time_s > 0, megacycles / np.where(time_s > 0, time_s, 1.0), requested_mhz)
    limited = mean_clock_mhz < requested_mhz * (1 - ROUNDING)
    return Behaviour(time_s=time_s, energy_j=energy_j, mean_clock_mhz=mean_clock_mhz, power_limited=limited)
