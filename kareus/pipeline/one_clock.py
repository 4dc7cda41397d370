"""Costs of an iteration with all instructions of all stages at one clock, which is all that some trainers can run."""

from typing import NamedTuple

import numpy as np
import polars as pl

from kareus.pipeline.clock_changes import NOWHERE, clocked_points
from kareus.pipeline.compare import THROUGHPUT_BASELINE
from kareus.pipeline.config import PipelineSlice


class OneClock(NamedTuple):
    """An iteration at one clock, as its trainer runs it by itself."""

    frequency_mhz: int
    time_s: float
    energy_j: float
    """Of all GPUs."""


def one_clock_costs(config: PipelineSlice, microbatch: pl.DataFrame) -> list[OneClock]:
    """Return the iteration at each clock that all instructions have a point at, the highest first.

    Args:
        config: the pipeline.
        microbatch: a table `MICROBATCH` of its stages.
    """
    clocked = clocked_points(config, microbatch, THROUGHPUT_BASELINE)
    clocks_mhz = clocked.clocks_mhz
    costs_at = []
    for number in range(len(clocks_mhz) - 1, -1, -1):
        seconds = np.where((clocked.clocks == number) & (clocked.points >= 0), clocked.seconds, NOWHERE)
        best = seconds.argmin(axis=1)
        rows = np.arange(len(best))
        if (seconds[rows, best] >= NOWHERE).any():
            continue
        costs = clocked.cost(best[clocked.kinds][:, np.newaxis])
        costs_at.append(OneClock(int(clocks_mhz[number]), float(costs.time_s[0]), float(costs.energy_j[0])))
    return costs_at
