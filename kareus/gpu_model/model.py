"""The GPU model: time, energy and mean clock of programs and partitions at requested clocks, under the power limit."""

import functools
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.gpu_model import energy
from kareus.gpu_model.elements import elements_where
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.norms import longer_s
from kareus.gpu_model.overlap import Phase, host_time_s, step_phases
from kareus.gpu_model.power_limit import CostRows, fluctuating, over_limit
from kareus.graph.program import Program, Step
from kareus.graph.records import Collective, Operator, Partition

ROUNDING = 1e-9
"""Relative error of a mean clock that counts as rounding."""

KnownSteps = dict[tuple[Step, bytes], CostRows]
"""Costs by step and clocks."""


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


def tally(program: Program) -> Tally:
    """Return the number of executions of each step of `program`."""
    first, last = program.blocks or (0, 0)
    outer = Counter(program.steps[:first]) + Counter(program.steps[last:])
    return Tally(Counter(program.steps[first:last]), outer, program.blocks is not None)


def run_program(gpu: Gpu, program: Program, frequency_mhz: Array | float, known: KnownSteps | None = None) -> Behaviour:
    """Return what one execution of `program` does at each requested clock; `known` as in `run_tally`."""
    return run_tally(gpu, tally(program), frequency_mhz, {} if known is None else known)


def run_tally(gpu: Gpu, counted: Tally, frequency_mhz: Array | float, known: KnownSteps) -> Behaviour:
    """Return what `run_program` does, for a program whose steps have been counted.

    Args:
        gpu: GPU that runs it.
        counted: steps of the program.
        frequency_mhz: requested clocks.
        known: costs of steps on this GPU, read and extended; programs of one workload share most of their steps.
    """
    requested_mhz = np.asarray(frequency_mhz, dtype=np.float64)
    cost = _sum(gpu, counted.blocks, requested_mhz, known) + _sum(gpu, counted.outer, requested_mhz, known)
    steps = behaviour_of(cost, requested_mhz)
    if not counted.whole_instruction:
        return steps
    alone = _sum(gpu, operators_alone(counted.blocks), requested_mhz, known)
    missed_s, missed_j = gpu.missed_by_isolation(alone[0], alone[1])
    return replace(steps, time_s=steps.time_s + missed_s, energy_j=steps.energy_j + missed_j)


def operators_alone(steps: Counter[Step]) -> Counter[Step]:
    """Return the operators of steps with no collective beside or after them."""
    alone: Counter[Step] = Counter()
    for step, count in steps.items():
        if step.operators:
            alone[Step(operators=step.operators)] += count
    return alone


def _sum(gpu: Gpu, steps: Counter[Step], requested_mhz: Array, known: KnownSteps) -> CostRows:
    total = np.zeros((3, *requested_mhz.shape))
    for step, count in steps.items():
        key = (step, requested_mhz.tobytes())
        if key not in known:
            known[key] = step_cost(gpu, step.operators, step.collective, requested_mhz, step.sm_count, step.launch)
        total += count * known[key]
    return total


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
    cost = step_cost(gpu, partition.operators, partition.collective, frequency_mhz, sm_count, launch_index)
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

    Every phase of it is held to the power limit by itself: a GEMM that a collective joins draws more than the step does
    on average, and it is then that the clock falls.
    """
    phases = step_phases(gpu, operators, collective, frequency_mhz, sm_count, launch_index)
    cost = functools.reduce(operator.add, [phase_cost(gpu, phase, frequency_mhz) for phase in phases])
    waiting_s = longer_s(cost[0], host_time_s(gpu, operators, collective)) - cost[0]
    return cost + _row(waiting_s, energy.idle_power_w(gpu, frequency_mhz) * waiting_s, frequency_mhz)


def phase_cost(gpu: Gpu, phase: Phase, requested_mhz: Array) -> CostRows:
    """Return the cost of a phase, of the shape of `requested_mhz`, held to the power limit."""
    requested = _steady_cost(gpu, phase, requested_mhz, requested_mhz)
    over = over_limit(gpu, requested)
    if over.all():
        return fluctuating(gpu, functools.partial(_steady_cost, gpu, phase, requested_mhz), requested_mhz, requested)
    if over.any():
        # Finding the clocks that hold the limit takes ten evaluations of the laws: only where it is exceeded.
        hot = elements_where(over)
        hot_gpu, hot_mhz = hot.gpu(gpu), hot.of(requested_mhz)
        steady = functools.partial(_steady_cost, hot_gpu, hot.phase(phase), hot_mhz)
        requested[:, over] = fluctuating(hot_gpu, steady, hot_mhz, requested[:, over])
    return requested


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
