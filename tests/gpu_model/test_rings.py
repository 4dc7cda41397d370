"""The law of collectives: bytes, latency, protocols and switches, each by itself."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import plain_a100

from kareus.gpu_model.laws import collective_time_s
from kareus.graph.records import Collective, CollectiveKind

MIB = 2**20
CLOCK, SMS = np.asarray(1410.0), np.asarray(24.0)


def collective(kind, group_size, message_bytes=256 * MIB):
    return Collective(kind=kind, group="tp", group_size=group_size, message_bytes=message_bytes, fused=1)


def with_coefficients(**values):
    gpu = plain_a100()
    return dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **values))


def time_s(one, gpu=None, clock_mhz=CLOCK):
    return float(collective_time_s(gpu or plain_a100(), one, clock_mhz, SMS))


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_a_ring_sends_all_but_its_own_shard_in_each_round(group_size):
    share = (group_size - 1) / group_size
    gathered, reduced = (
        collective(CollectiveKind.ALL_GATHER, group_size),
        collective(CollectiveKind.ALL_REDUCE, group_size),
    )
    assert gathered.bus_bytes == share * 256 * MIB
    assert reduced.bus_bytes == 2 * share * 256 * MIB


def test_the_clock_share_of_a_collective_is_what_scales():
    """At half the clock that share of the time doubles; with a share of 0 or 1, nothing or all of it."""
    one = collective(CollectiveKind.ALL_REDUCE, 8)
    for share in (0.0, 0.2, 0.8, 1.0):
        gpu = with_coefficients(bus_clock_share=share, collective_latency_s=0.0)
        assert time_s(one, gpu, np.asarray(705.0)) / time_s(one, gpu) == pytest.approx(1 + share)


def test_a_step_of_the_ring_has_a_latency():
    gpu = with_coefficients(collective_step_s=1e-3)
    for kind, passes in ((CollectiveKind.ALL_REDUCE, 2), (CollectiveKind.ALL_GATHER, 1)):
        one = collective(kind, 4)
        assert time_s(one, gpu) - time_s(one) == pytest.approx(passes * 3 * 1e-3)


def test_the_own_shard_is_copied():
    one = collective(CollectiveKind.ALL_GATHER, 2)
    moving_s = time_s(one, with_coefficients(collective_latency_s=0.0))
    copying = with_coefficients(collective_latency_s=0.0, own_shard_copy=0.5)
    assert time_s(one, copying) == pytest.approx(1.5 * moving_s)  # of two shards one is sent, one copied


def test_small_messages_take_the_protocol_of_low_latency():
    gpu = with_coefficients(fast_protocol_latency=0.25, fast_protocol_bandwidth=0.2)
    latency_s = gpu.coefficients.collective_latency_s
    assert time_s(collective(CollectiveKind.ALL_GATHER, 8, 1024), gpu) == pytest.approx(latency_s / 4, rel=1e-2)
    large = collective(CollectiveKind.ALL_GATHER, 8, 1024 * MIB)
    assert time_s(large, gpu) == time_s(large)


def test_switches_reduce_where_that_is_faster():
    """A buffer up and a shard down at link speed, against 14 eighths around a ring; of two GPUs the ring has less."""
    plain = with_coefficients(switch_efficiency=0.8, collective_latency_s=0.0)
    gpu = dataclasses.replace(plain, switches_reduce=True)
    assert time_s(collective(CollectiveKind.ALL_REDUCE, 8), gpu) == pytest.approx(1.125 * 256 * MIB / (300e9 * 0.8))
    for one in (collective(CollectiveKind.ALL_REDUCE, 2), collective(CollectiveKind.ALL_GATHER, 8)):
        assert time_s(one, gpu) == time_s(one, plain)
    assert time_s(collective(CollectiveKind.ALL_REDUCE, 8), plain) > 1.1 * time_s(
        collective(CollectiveKind.ALL_REDUCE, 8), gpu
    )
