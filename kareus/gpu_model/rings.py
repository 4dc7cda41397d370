"""Time of a collective within a node: a ring in one of NCCL's protocols, or a reduction inside the switches.

NCCL takes what it expects to be fastest: a protocol that flags every few bytes (LL, LL128) starts sooner and moves
fewer bytes a second than the one for large messages (Simple), and switches that reduce (NVLS) spare an all-reduce most
of its steps. Sizes may be numbers, or arrays of one shape.
"""

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu


def ring_time_s(
    gpu: Gpu,
    *,
    bus_bytes: Array | float,
    message_bytes: Array | float,
    group_size: Array | int,
    passes: Array | int,
    frequency_mhz: Array,
    sm_count: Array,
) -> Array:
    """Return the time of a collective alone.

    Bytes over a bandwidth that saturates with the SM count; a share of the time (`bus_clock_share`) scales with the SM
    clock, because SMs copy and reduce.

    Args:
        gpu: GPU that takes part in it.
        bus_bytes: bytes that it sends over its links.
        message_bytes: bytes of the whole buffer.
        group_size: number of GPUs.
        passes: rounds of the ring: 2 for an all-reduce (reduce-scatter, all-gather), else 1.
        frequency_mhz: SM clock.
        sm_count: SMs that move the data.
    """
    c = gpu.coefficients
    latency_s = c.collective_latency_s + c.collective_step_s * passes * (group_size - 1)
    moving_s = ring_moving_s(
        gpu,
        bus_bytes=bus_bytes,
        message_bytes=message_bytes,
        group_size=group_size,
        frequency_mhz=frequency_mhz,
        sm_count=sm_count,
    )
    least_s = latency_s + moving_s
    for latency, bandwidth in (
        (c.fast_protocol_latency, c.fast_protocol_bandwidth),
        (c.middle_protocol_latency, c.middle_protocol_bandwidth),
    ):
        if np.any(latency < 1):
            least_s = np.minimum(least_s, latency_s * latency + moving_s / bandwidth)
    if gpu.switches_reduce and np.any(c.switch_efficiency):
        least_s = np.where(passes == 2, np.minimum(least_s, _in_switches_s(gpu, message_bytes, group_size)), least_s)  # noqa: PLR2004
    return least_s


def ring_moving_s(
    gpu: Gpu,
    *,
    bus_bytes: Array | float,
    message_bytes: Array | float,
    group_size: Array | int,
    frequency_mhz: Array,
    sm_count: Array,
) -> Array:
    """Return what of `ring_time_s`, in the protocol for large messages, is no latency; same arguments."""
    c = gpu.coefficients
    bytes_per_s = gpu.link_gb_per_s * 1e9 * c.bus_efficiency * sm_count / (sm_count + c.bus_half_sm_count)
    clock = 1 - c.bus_clock_share + c.bus_clock_share * gpu.maximum_clock_mhz / frequency_mhz
    moved_bytes = bus_bytes + c.own_shard_copy * message_bytes / group_size
    return moved_bytes / bytes_per_s * clock


def _in_switches_s(gpu: Gpu, message_bytes: Array | float, group_size: Array | int) -> Array | float:
    """Time of an all-reduce in the switches: a GPU sends its buffer once, and its shard of the sum once more."""
    c = gpu.coefficients
    bytes_per_s = gpu.link_gb_per_s * 1e9 * c.switch_efficiency
    return c.switch_latency_s + message_bytes * (1 + 1 / group_size) / bytes_per_s
