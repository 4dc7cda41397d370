"""Collectives between nodes: limits worked out by hand."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import a100, all_reduce

from kareus.gpu_model.laws import collective_time_s
from kareus.gpu_model.network import Placement, message_latency_s, placed_collective_s, placement_of
from kareus.graph.records import CollectiveKind

CLOCK, SMS = np.array([1410.0]), np.array([24.0])
GPU = a100()
NIC_BYTES_PER_S = 50e9 / 8 * GPU.coefficients.bus_efficiency


def seconds(elements, nodes, per_node, clock=CLOCK, sms=SMS):
    collective = all_reduce(elements, nodes * per_node)
    return float(placed_collective_s(GPU, collective, Placement(nodes, per_node), clock, sms)[0])


def test_ranks_fill_nodes_one_after_the_other():
    assert placement_of(range(16), 8) == Placement(2, 8)
    assert placement_of(range(0, 16, 2), 8) == Placement(2, 4)
    assert placement_of([0, 8, 16], 8) == Placement(3, 1)
    assert placement_of([3], 8) == Placement(1, 1)
    assert placement_of(range(12), 8) == Placement(2, 4)


def test_on_one_node_the_law_is_that_of_a_block():
    collective = all_reduce(10**8, 8)
    assert seconds(10**8, 1, 8) == collective_time_s(GPU, collective, CLOCK, SMS)[0]


def test_one_rank_a_node_has_one_nic():
    collective = all_reduce(10**9, 4)
    assert seconds(10**9, 4, 1) == pytest.approx(collective.bus_bytes / NIC_BYTES_PER_S, rel=1e-3)


def test_ranks_of_a_node_share_its_traffic_among_their_nics():
    collective = all_reduce(10**9, 16)
    assert seconds(10**9, 2, 8) == pytest.approx(collective.bus_bytes / (8 * NIC_BYTES_PER_S), rel=1e-2)


def test_no_more_nics_are_used_than_there_are_sms():
    """Each ring is one SM's and leads through one NIC."""
    collective = all_reduce(10**9, 16)
    for sms, nics in ((1, 1), (3, 3), (8, 8), (24, 8)):
        expected_s = collective.bus_bytes / (nics * NIC_BYTES_PER_S)
        assert seconds(10**9, 2, 8, sms=np.array([float(sms)])) == pytest.approx(expected_s, rel=1e-2)
    assert seconds(10**9, 4, 1, sms=np.array([1.0])) == seconds(10**9, 4, 1)


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER])
def test_steps_of_a_ring_between_nodes_are_counted_once(kind):
    """The latency of a step within a node is the GPU's on one node, and NCCL's own between nodes."""
    coefficients = dataclasses.replace(GPU.coefficients, collective_step_s=1e-6, fast_protocol_latency=0.4)
    stepwise = dataclasses.replace(GPU, coefficients=coefficients)
    collective = dataclasses.replace(all_reduce(10**9, 16), kind=kind)
    found = [placed_collective_s(gpu, collective, Placement(2, 8), CLOCK, SMS)[0] for gpu in (GPU, stepwise)]
    assert found[0] == found[1]
    rounds = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    latency_s = rounds * (14 * 3.4e-6 + 9.6e-6) + GPU.coefficients.collective_latency_s
    assert found[1] == pytest.approx(collective.bus_bytes / (8 * NIC_BYTES_PER_S) + latency_s, rel=1e-6)


def test_nics_are_no_slower_at_a_low_clock():
    assert seconds(10**9, 4, 1, np.array([900.0])) == seconds(10**9, 4, 1)
    assert seconds(10**9, 1, 8, np.array([900.0])) > 1.2 * seconds(10**9, 1, 8)


def test_small_sums_go_up_and_down_a_tree():
    """A ring of 128 nodes would take 254 steps of 9.6 us."""
    base_s = GPU.coefficients.collective_latency_s
    assert seconds(2, 128, 1) - base_s == pytest.approx(2 * 7 * 5e-6, rel=0.01)


def test_more_nodes_never_make_a_collective_faster():
    for elements in (1, 10**5, 10**9):
        times_s = [seconds(elements, nodes, 8) for nodes in (1, 2, 4, 8, 16)]
        assert times_s == sorted(times_s)


@pytest.mark.parametrize("slowdown", [0.8, 2.0, 5.0])
def test_a_slow_network_takes_its_time_for_bytes_between_nodes_alone(slowdown):
    slow = dataclasses.replace(GPU, coefficients=dataclasses.replace(GPU.coefficients, network_slowdown=slowdown))
    assert slow.nic_gb_per_s == pytest.approx(50 / 8 / slowdown)
    collective = all_reduce(10**9, 4)

    def moving_s(gpu, placement):
        return float(placed_collective_s(gpu, collective, placement, CLOCK, SMS)[0]) - 2 * 3 * 9.6e-6

    base_s = GPU.coefficients.collective_latency_s
    between = Placement(4, 1)
    assert moving_s(slow, between) - base_s == pytest.approx(slowdown * (moving_s(GPU, between) - base_s), rel=1e-6)
    assert moving_s(slow, Placement(1, 4)) == moving_s(GPU, Placement(1, 4))


def test_a_further_message_costs_what_a_ring_without_bytes_does():
    collective = dataclasses.replace(all_reduce(10**9, 16), kind=CollectiveKind.ALL_GATHER)
    base_s = GPU.coefficients.collective_latency_s
    assert message_latency_s(GPU, collective, Placement(2, 8)) == pytest.approx(base_s + 14 * 3.4e-6 + 9.6e-6)
    assert message_latency_s(GPU, collective, Placement(1, 16)) == base_s
