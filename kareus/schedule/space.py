"""The search space of a partition (paper, appendices "Global Solution Space" and "MBO Hyperparameters")."""

import itertools
import logging
from collections.abc import Iterable

import polars as pl

from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Operator, OperatorKind, Partition
from kareus.schedule.config import ScheduleSlice, SearchSpaceConfig, sm_allocations
from kareus.schedule.records import SearchSpace
from kareus.schedule.tables import space_frame

logger = logging.getLogger(__name__)


def enumerate_spaces(config: ScheduleSlice, partitions: Iterable[Partition]) -> pl.DataFrame:
    """Return the table `SPACE`: the search space of every partition, whose sizes are logged."""
    spaces = []
    for partition in partitions:
        space = search_space(partition, config.gpu, config.space)
        logger.info(
            "%s: %d candidates (%d frequencies x %d SM counts x %d of %d launch operators)",
            partition.name,
            len(space),
            len(set(space.frequency_mhz)),
            len(set(space.sm_count)),
            len(set(space.launch)),
            len(partition.operators),
        )
        spaces.append(space)
    return space_frame(spaces)


def search_space(partition: Partition, gpu: Gpu, space: SearchSpaceConfig) -> SearchSpace:
    """Return all candidates of `partition`, sorted by frequency, SM count and launch operator."""
    sm_counts = sm_allocations(partition.collective.group_size, space)
    launches = launch_operators(partition, gpu, sm_counts)
    grid = itertools.product(gpu.search_frequencies.clocks_mhz, sm_counts, launches)
    frequency_mhz, sm_count, launch = zip(*grid, strict=True)
    return SearchSpace(partition=partition.name, frequency_mhz=frequency_mhz, sm_count=sm_count, launch=launch)


def launch_operators(partition: Partition, gpu: Gpu, sm_counts: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of the operators beside which the collective may start without being exposed for certain.

    An operator is left out if from there on the collective takes longer than the remaining operators at every
    frequency and SM count, each taken at its hardware bound. The first operator always stays: a collective that
    nothing can hide still has to start somewhere.
    """
    collective_s = partition.collective.bus_bytes / (gpu.link_gb_per_s * 1e9)
    slowest = gpu.search_frequencies.minimum_mhz, gpu.sm_count - max(sm_counts)
    longest_s = [bound_time_s(gpu, operator, *slowest) for operator in partition.operators]
    return tuple(
        operator.name for n, operator in enumerate(partition.operators) if n == 0 or sum(longest_s[n:]) >= collective_s
    )


def bound_time_s(gpu: Gpu, operator: Operator, frequency_mhz: int, sm_count: int) -> float:
    """Return the least time that hardware allows: the larger of arithmetic and HBM time at peak, then copies."""
    memory_bound = operator.kind is OperatorKind.MEMORY
    compute_s = 0.0 if memory_bound else operator.flops / gpu.peak_flops(frequency_mhz, sm_count)
    bytes_per_s = gpu.hbm_gb_per_s * 1e9
    memory_s = (operator.bytes_read + operator.bytes_written) / bytes_per_s
    return max(compute_s, memory_s) + operator.copied_bytes / bytes_per_s
