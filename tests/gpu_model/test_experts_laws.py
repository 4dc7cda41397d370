"""Laws of what mixtures of experts run: products of groups of rows, and exchanges of tokens between nodes."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import a100

from kareus.gpu_model import laws
from kareus.gpu_model.energy import operator_switching
from kareus.gpu_model.model import run_schedules
from kareus.gpu_model.network import Placement, placed_collective_s
from kareus.graph.records import Collective, CollectiveKind, Direction, Partition, PlacedCollective, TokenExchange
from kareus.partition.made import grouped_product, grouped_weight_gradient, product, weight_gradient

CLOCK, SMS = np.array(1410.0), np.array(20.0)


def test_one_group_is_a_product() -> None:
    gpu = a100()
    every = np.array(float(gpu.sm_count))
    for grouped, plain in (
        (grouped_product("up", 1, 4096, 1536, 2048), product("up", 4096, 1536, 2048)),
        (grouped_weight_gradient("up", 1, 4096, 1536, 2048), weight_gradient("up", 1536, 2048, 4096)),
    ):
        assert grouped.flops == plain.flops
        assert grouped.bytes_read + grouped.bytes_written == plain.bytes_read + plain.bytes_written
        times = [laws.operator_time_s(gpu, one, CLOCK, every) for one in (grouped, plain)]
        assert times[0] == pytest.approx(times[1], rel=1e-9)
        assert operator_switching(gpu, grouped).at_j(gpu, CLOCK) == operator_switching(gpu, plain).at_j(gpu, CLOCK)


def test_the_same_rows_in_more_groups_take_longer() -> None:
    gpu = a100()
    times = [
        float(laws.operator_time_s(gpu, grouped_product("up", n, 8192, 1536, 2048), CLOCK, np.array(108.0)))
        for n in (1, 8, 64, 512)
    ]
    assert times == sorted(times)


def exchange(nodes: int, per_node: int = 8, **more: float) -> Collective:
    kind = TokenExchange if more else PlacedCollective
    return kind(
        kind=CollectiveKind.ALL_TO_ALL, group="ep", group_size=nodes * per_node, message_bytes=1 << 28, fused=1,
        nodes=nodes, per_node=per_node, **more,
    )  # fmt: skip


def seconds(collective: Collective, nodes: int) -> float:
    return float(placed_collective_s(a100(), collective, Placement(nodes, 8), CLOCK, SMS))


def test_exchanges_between_nodes_are_bound_by_a_nic_for_each_gpu() -> None:
    gpu = a100()
    for nodes in (2, 8):
        sent = (1 << 28) * (nodes - 1) / nodes
        alone_s = sent / (gpu.nic_gb_per_s * 1e9 * gpu.coefficients.bus_efficiency)
        assert seconds(exchange(nodes), nodes) == pytest.approx(alone_s, rel=0.05)
        assert seconds(exchange(nodes, between_share=0.5), nodes) == pytest.approx(alone_s / 2, rel=0.05)
    inside = dataclasses.replace(exchange(1), nodes=1)
    assert seconds(inside, 1) < seconds(exchange(2), 2)
    assert exchange(2).bus_bytes == (1 << 28) * 15 / 16


def test_sms_of_an_exchange_shorten_it_and_slow_the_experts_beside_it() -> None:
    """An exchange beside products is priced as an all-reduce is: what it gets of the SMs, the products lack."""
    gpu, sm_counts = a100(), np.array([3.0, 6.0, 12.0, 24.0, 48.0])
    clocks = np.full_like(sm_counts, 1410.0)
    inside = Collective(kind=CollectiveKind.ALL_TO_ALL, group="ep", group_size=8, message_bytes=1 << 28, fused=1)
    experts = grouped_product("experts_gate_up", 16, 65536, 1536, 2048)
    beside = Partition(name="both", direction=Direction.FORWARD, operators=(experts,) * 4, collective=inside)
    together_s = run_schedules(gpu, beside, clocks, sm_counts, np.zeros(5)).time_s
    exchanged_s = laws.collective_time_s(gpu, inside, clocks, sm_counts)
    products_s = 4 * laws.operator_time_s(gpu, experts, clocks, np.full_like(clocks, gpu.sm_count))
    assert np.all(np.diff(exchanged_s) <= 0) and exchanged_s[0] > exchanged_s[2]
    assert np.all(together_s > np.maximum(products_s, exchanged_s))
    assert together_s.min() < (products_s + exchanged_s).min()
    assert together_s.argmin() < len(sm_counts) - 1, "SMs that an exchange does not need are the products'"
