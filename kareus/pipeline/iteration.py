"""Time and energy of an iteration whose instructions have given costs, of one and of many at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.waiting import total_energy_j, waited_j
from kareus.pipeline.solver.dag import Dag, earliest_starts, earliest_starts_s, makespan


class ComposedIteration(NamedTuple):
    """Time and energy of one iteration."""

    time_s: float
    energy_j: float
    """Energy of all GPUs, those that wait included."""

    @property
    def product(self) -> float:
        """Product of both in joule-seconds."""
        return self.time_s * self.energy_j


def iteration_cost(
    dag: Dag, times_s: Sequence[float], effective_j: Sequence[float], waiting_power_w: float
) -> ComposedIteration:
    """Return the time and energy of an iteration.

    Args:
        dag: instructions in order, with their messages.
        times_s: time of each instruction in s.
        effective_j: effective energy of each in J, of all GPUs of its stage.
        waiting_power_w: power of all GPUs while they wait.

    Example:
        >>> dag = Dag(order=(0, 1), predecessors=((), ((0, 0.5),)), successors=(((1, 0.5),), ()))
        >>> iteration_cost(dag, [1.0, 2.0], [10.0, 20.0], waiting_power_w=2.0)
        ComposedIteration(time_s=3.5, energy_j=37.0)
    """
    time_s = makespan(dag, times_s)
    return ComposedIteration(time_s, total_energy_j(sum(effective_j), time_s, waiting_power_w))


def clocked_iteration_cost(
    dag: Dag,
    times_s: Sequence[float],
    effective_j: Sequence[float],
    waiting_power_w: float,
    stages: Sequence[Sequence[int]],
    above_w: Sequence[float],
) -> ComposedIteration:
    """Return the time and energy of an iteration whose GPUs wait at the clocks of their instructions.

    Args:
        dag: instructions in order, with their messages.
        times_s: time of each instruction in s.
        effective_j: effective energy of each in J, of all GPUs of its stage.
        waiting_power_w: least power of all GPUs while they wait.
        stages: numbers of the instructions of each stage, in order.
        above_w: by instruction, power of all GPUs of its stage that wait for it, above their least.

    Example:
        >>> dag = Dag(order=(0, 1), predecessors=((), ((0, 0.5),)), successors=(((1, 0.5),), ()))
        >>> clocked_iteration_cost(dag, [1.0, 2.0], [10.0, 20.0], 2.0, stages=[[0], [1]], above_w=[1.0, 2.0])
        ComposedIteration(time_s=3.5, energy_j=42.5)
    """
    starts_s = earliest_starts(dag, times_s)
    end_s = max(start_s + time_s for start_s, time_s in zip(starts_s, times_s, strict=True))
    above_j = sum(waited_j(stage, starts_s, times_s, above_w, end_s) for stage in stages)
    return ComposedIteration(end_s, total_energy_j(sum(effective_j), end_s, waiting_power_w) + above_j)


def iteration_costs(dag: Dag, times_s: Array, effective_j: Array, waiting_power_w: float) -> tuple[Array, Array]:
    """Return times and energies of many iterations at once, as `iteration_cost` does of one.

    Args:
        dag: instructions in order, with their messages.
        times_s: seconds, shape (instructions, *lanes).
        effective_j: joules, of the same shape.
        waiting_power_w: power of all GPUs while they wait.

    Returns:
        Seconds and joules, each of shape (*lanes,).
    """
    lanes = times_s.reshape(len(times_s), -1)
    ends_s: Array = (earliest_starts_s(dag, lanes) + lanes).max(axis=0).reshape(times_s.shape[1:])
    return ends_s, total_energy_j(np.sum(effective_j, axis=0), ends_s, waiting_power_w)
