"""Power of all GPUs of a plan together, over one iteration."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.plans.document import Plan, waits_between

RESOLUTION = 9
"""Decimals of a second within which an end is a start: sums of the same times in another order."""


class InstructionRun(NamedTuple):
    """One instruction as its stage runs it, with its change of clock."""

    start_s: float
    time_s: float
    energy_j: float
    """Of one GPU."""
    frequency_mhz: int


def power_over_time(plan: Plan, gpu: Gpu) -> pl.DataFrame:
    """Power of the whole pipeline over one iteration, as it holds from each change to the next.

    A GPU draws the mean power of its instruction while that runs, and that of waiting at its clock while it waits; the
    integral is the plan's energy, which charges instructions and waiting alike.

    Args:
        plan: a plan with its energies.
        gpu: that runs it.

    Returns:
        `time_s`, from 0 to the end of the iteration, and `power_w`; the last row repeats the power before it.
    """
    edges_s, powers_w = power_steps(plan, gpu)
    return pl.DataFrame({"time_s": edges_s, "power_w": np.append(powers_w, powers_w[-1])})


def power_steps(plan: Plan, gpu: Gpu) -> tuple[Array, Array]:
    """Return the power of a plan as `steps_of_runs` does."""
    stages = [
        [InstructionRun(i.start_s, i.time_s, i.energy_j, i.frequency_mhz) for i in stage.instructions]
        for stage in plan.stages
    ]
    return steps_of_runs(stages, plan.prediction.time_s, plan.gpus, gpu)


def steps_of_runs(stages: Iterable[Sequence[InstructionRun]], end_s: float, gpus: int, gpu: Gpu) -> tuple[Array, Array]:
    """Return the power of all GPUs of a pipeline over one iteration.

    Args:
        stages: what each stage runs, in order.
        end_s: of the iteration.
        gpus: all of them; stages have equally many.
        gpu: that runs it.

    Returns:
        Moments at which the power changes, in seconds from 0 to the end, shape (n + 1,); watts in between, shape (n,).
    """
    at_s, by_w, stages = [0.0, end_s], [0.0, 0.0], list(stages)
    for runs in stages:
        spans = [(run.start_s, run.start_s + run.time_s, run.energy_j / run.time_s) for run in runs]
        waits = waits_between([(run.start_s, run.time_s, run.frequency_mhz) for run in runs], end_s, gpu)
        for from_s, to_s, power_w in (*spans, *((wait.from_s, wait.to_s, wait.power_w) for wait in waits)):
            at_s += [from_s, to_s]
            by_w += [power_w, -power_w]
    edges_s, places = np.unique(np.round(at_s, RESOLUTION), return_inverse=True)
    powers_w: Array = np.cumsum(np.bincount(places, np.array(by_w)), dtype=np.float64) * (gpus // len(stages))
    return edges_s, powers_w[:-1]
