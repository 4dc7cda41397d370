"""The search space of a partition (paper, appendices "Global Solution Space" and "MBO Hyperparameters")."""

from dataclasses import dataclass

from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Operator, OperatorKind, Partition
from kareus.schedule.config import SearchSpaceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSchedule:
    """One candidate: how a partition may run."""

    frequency_mhz: int
    sm_count: int
    """SMs given to the collective."""
    launch: int
    """Index of the operator beside which the collective is launched."""


def search_space(partition: Partition, gpu: Gpu, space: SearchSpaceConfig) -> tuple[ExecutionSchedule, ...]:
    """All candidates of `partition`, ordered by frequency, SM count and launch operator."""
    sm_counts = sm_allocations(partition.collective.group_size, space)
    launches = launch_operators(partition, gpu, sm_counts)
    return tuple(
        ExecutionSchedule(frequency_mhz=frequency_mhz, sm_count=sm_count, launch=launch)
        for frequency_mhz in gpu.search_frequencies.clocks_mhz
        for sm_count in sm_counts
        for launch in launches
    )


def sm_allocations(group_size: int, space: SearchSpaceConfig) -> tuple[int, ...]:
    """SM counts to search for a collective among `group_size` GPUs: multiples of the stride."""
    small = group_size < space.small_group_below
    stride = space.small_group_sm_stride if small else space.sm_stride
    largest = space.small_group_sm_max if small else space.sm_max
    return tuple(range(stride, largest + 1, stride))


def launch_operators(partition: Partition, gpu: Gpu, sm_counts: tuple[int, ...]) -> tuple[int, ...]:
    """Operators beside which the collective may start without being exposed for certain.

    An operator is left out if from there on the collective takes longer than the remaining operators at every
    frequency and SM count, each taken at its hardware bound. The first operator always stays: a collective that
    nothing can hide still has to start somewhere.
    """
    collective_s = partition.collective.bus_bytes / (gpu.link_gb_per_s * 1e9)
    slowest = gpu.search_frequencies.minimum_mhz, gpu.sm_count - max(sm_counts)
    longest_s = [bound_time_s(gpu, operator, *slowest) for operator in partition.operators]
    return tuple(n for n in range(len(longest_s)) if n == 0 or sum(longest_s[n:]) >= collective_s)


def bound_time_s(gpu: Gpu, operator: Operator, frequency_mhz: int, sm_count: int) -> float:
    """Least time that hardware allows for `operator`: the larger of arithmetic and HBM time at peak, then copies."""
    memory_bound = operator.kind is OperatorKind.MEMORY
    compute_s = 0.0 if memory_bound else operator.flops / gpu.peak_flops(frequency_mhz, sm_count)
    bytes_per_s = gpu.hbm_gb_per_s * 1e9
    memory_s = (operator.bytes_read + operator.bytes_written) / bytes_per_s
    return max(compute_s, memory_s) + operator.copied_bytes / bytes_per_s
