"""The GPU model: what a program or a partition does at a requested clock, once the power limit has had its say."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.partition.graph import Partition
from kareus.testbed.program import Program, Step
from kareus.testbed.simulated import energy
from kareus.testbed.simulated.laws import Array
from kareus.testbed.simulated.overlap import step_time_s
from kareus.workload.gpu import Gpu

HALVINGS = 3
"""Of the distance between two clocks, until power is as good as linear between them."""

Cost = tuple[Array, Array]
"""Time in seconds and energy in joules of one execution on one GPU, at each clock."""
KnownSteps = dict[tuple[Step, bytes], Cost]
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
    """How often a program executes each step; nothing else about it decides its cost."""

    blocks: Counter[Step]
    """Steps in transformer blocks of a whole instruction."""
    outer: Counter[Step]
    """All others."""
    whole_instruction: bool


def tally(program: Program) -> Tally:
    """Count the steps of `program`."""
    first, last = program.blocks or (0, 0)
    outer = Counter(program.steps[:first]) + Counter(program.steps[last:])
    return Tally(Counter(program.steps[first:last]), outer, program.blocks is not None)


def run_program(gpu: Gpu, program: Program, frequency_mhz: Array | float) -> Behaviour:
    """What one execution of `program` does at each requested clock."""
    return run_tally(gpu, tally(program), frequency_mhz, {})


def run_tally(gpu: Gpu, counted: Tally, frequency_mhz: Array | float, known: KnownSteps) -> Behaviour:
    """As `run_program`, for a program that was counted before.

    Args:
        gpu: what runs it.
        counted: the program.
        frequency_mhz: requested clocks.
        known: costs of steps on this GPU, taken from and added to; programs of one workload share most of theirs.
    """
    return within_power_limit(gpu, lambda clocks: _steady(gpu, counted, clocks, known), frequency_mhz)


def run_schedules(gpu: Gpu, partition: Partition, frequency_mhz: Array, sm_count: Array, launch: Array) -> Behaviour:
    """What one execution of `partition` does under each of many execution schedules.

    Args:
        gpu: what runs it.
        partition: operators and their collective.
        frequency_mhz: requested clock of each schedule, shape (n,).
        sm_count: SMs of the collective, shape (n,).
        launch: index of the operator with which the collective starts, shape (n,).
    """

    def steady(clocks: Array) -> Cost:
        time_s = step_time_s(gpu, partition.operators, partition.collective, clocks, sm_count, launch)
        switching_j = energy.switching_j(gpu, partition.operators, partition.collective, clocks)
        return time_s, switching_j + energy.idle_power_w(gpu, clocks) * time_s

    return within_power_limit(gpu, steady, frequency_mhz)


def steady_program(gpu: Gpu, program: Program, frequency_mhz: Array | float) -> Cost:
    """Time and energy of `program` at steady clocks, with no power limit."""
    return _steady(gpu, tally(program), np.asarray(frequency_mhz, dtype=np.float64), {})


def _steady(gpu: Gpu, counted: Tally, frequency_mhz: Array, known: KnownSteps) -> Cost:
    blocks = _sum(gpu, counted.blocks, frequency_mhz, known)
    outer = _sum(gpu, counted.outer, frequency_mhz, known)
    return gpu.whole_instruction(blocks, outer) if counted.whole_instruction else outer


def _sum(gpu: Gpu, steps: Counter[Step], frequency_mhz: Array, known: KnownSteps) -> Cost:
    time_s, energy_j = np.zeros_like(frequency_mhz), np.zeros_like(frequency_mhz)
    for step, count in steps.items():
        key = (step, frequency_mhz.tobytes())
        if key not in known:
            known[key] = _step(gpu, step, frequency_mhz)
        own_s, own_j = known[key]
        time_s, energy_j = time_s + count * own_s, energy_j + count * own_j
    return time_s, energy_j


def _step(gpu: Gpu, step: Step, frequency_mhz: Array) -> Cost:
    time_s = step_time_s(gpu, step.operators, step.collective, frequency_mhz, step.sm_count, step.launch)
    switching_j = energy.switching_j(gpu, step.operators, step.collective, frequency_mhz)
    return time_s, switching_j + energy.idle_power_w(gpu, frequency_mhz) * time_s


def within_power_limit(gpu: Gpu, steady: Callable[[Array], Cost], frequency_mhz: Array | float) -> Behaviour:
    """Apply the power limit to what happens at steady clocks.

    At the limit the clock alternates between the requested one and a lower one. Work goes on as fast as at the steady
    clock that would meet the limit, but power is convex in the clock, so it costs more (paper, appendix A); mean power
    lies between that at which bursts reach the limit, and the limit itself. Work that this cannot hold is slower still.

    Args:
        gpu: whose limit applies.
        steady: time and energy at steady clocks; called with arrays of the shape of `frequency_mhz`.
        frequency_mhz: requested clocks.
    """
    requested_mhz = np.asarray(frequency_mhz, dtype=np.float64)
    time_s, energy_j = steady(requested_mhz)
    over = energy_j > gpu.throttling_power_w * time_s
    if not over.any():
        return Behaviour(time_s=time_s, energy_j=energy_j, mean_clock_mhz=requested_mhz, power_limited=over)
    lower_mhz, lower_s, lower_j = _first_clock_within_limit(gpu, steady, requested_mhz, time_s, energy_j)
    steady_s = _time_at_limit(gpu, steady, requested_mhz, lower_mhz)
    # What the clock does not speed up, such as memory-bound operators alone, runs at the lower one.
    as_fast = (lower_s - steady_s) / np.where(lower_s > time_s, lower_s - time_s, 1.0)
    within_limit = _share_at_power(gpu.power_limit_w, (time_s, energy_j), (lower_s, lower_j))
    share = np.where(over, np.clip(as_fast, 0.0, within_limit), 1.0)
    mixed_s = share * time_s + (1 - share) * lower_s
    return Behaviour(
        time_s=mixed_s,
        energy_j=share * energy_j + (1 - share) * lower_j,
        mean_clock_mhz=(share * time_s * requested_mhz + (1 - share) * lower_s * lower_mhz) / mixed_s,
        power_limited=over,
    )


def _first_clock_within_limit(
    gpu: Gpu, steady: Callable[[Array], Cost], clock_mhz: Array, time_s: Array, energy_j: Array
) -> tuple[Array, Array, Array]:
    """Step down from each clock until power is within the limit; a GPU never stops, so one step is the lowest."""
    step_mhz = gpu.coefficients.throttle_step_mhz
    while True:
        above = (energy_j > gpu.throttling_power_w * time_s) & (clock_mhz > step_mhz)
        if not above.any():
            return clock_mhz, time_s, energy_j
        clock_mhz = np.where(above, np.maximum(clock_mhz - step_mhz, step_mhz), clock_mhz)
        time_s, energy_j = steady(clock_mhz)


def _time_at_limit(gpu: Gpu, steady: Callable[[Array], Cost], high_mhz: Array, low_mhz: Array) -> Array:
    """Time at the steady clocks whose power is just within the limit, between clocks above and within it."""
    for _ in range(HALVINGS):
        middle_mhz = (high_mhz + low_mhz) / 2
        time_s, energy_j = steady(middle_mhz)
        above = energy_j > gpu.throttling_power_w * time_s
        high_mhz, low_mhz = np.where(above, middle_mhz, high_mhz), np.where(above, low_mhz, middle_mhz)
    high, low = steady(high_mhz), steady(low_mhz)
    share = _share_at_power(gpu.throttling_power_w, high, low)
    return share * high[0] + (1 - share) * low[0]


def _share_at_power(power_w: float, high: Cost, low: Cost) -> Array:
    """Share of the work that may be done at the higher of two costs, so that mean power is at most `power_w`."""
    excess_j = np.maximum(high[1] - power_w * high[0], 0.0)
    reserve_j = np.maximum(power_w * low[0] - low[1], 0.0)
    return np.where(excess_j > 0, reserve_j / np.where(excess_j > 0, excess_j + reserve_j, 1.0), 1.0)
