"""Laws of what the software that drives a GPU decides: slower kernels, more traffic, slower collectives."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.builders import a100, all_reduce, gemm, memory

from kareus.gpu_model import laws
from kareus.gpu_model.energy import operator_switching
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import step_cost
from kareus.gpu_model.network import Placement, placed_collective_s
from kareus.graph.records import Operator, OperatorKind

CLOCK = np.array(1410.0)
PRODUCT, NORM = gemm("up", 8192, 4096, 4096), memory("norm", 2**26)
ATTENTION = replace(
    gemm("attention", 8192, 1, 1), kind=OperatorKind.ATTENTION, shape=(8, 16, 16, 2048, 2048, 128),
    flops=2 * 8 * 16 * 2048 * 2048 * 128,
)  # fmt: skip
ATTENTION_BACKWARD = replace(ATTENTION, kind=OperatorKind.ATTENTION_BACKWARD, flops=5 * ATTENTION.flops // 2)


def driven(**numbers: float) -> Gpu:
    """A GPU without gaps between kernels, so that they take what their work does."""
    quiet = {"kernel_overhead_s": 0.0, "attention_s": 0.0, "host_launch_s": 0.0, "streaming_kernels": 1.0}
    return a100(coefficients=replace(a100().coefficients, **(quiet | numbers)), power_limit_w=10_000)


def cost(gpu: Gpu, operator: Operator) -> tuple[float, float]:
    """Seconds and watts of an operator at the maximum clock."""
    time_s, energy_j, _ = step_cost(gpu, [operator], None, CLOCK, 0, 0)
    return float(time_s), float(energy_j / time_s)


def product_s(name: str, *shape: int) -> float:
    return cost(driven(), gemm(name, *shape))[0]


@pytest.mark.parametrize("way", ["head", "head.dgrad", "head.wgrad"])
def test_products_with_rows_of_odd_lengths_take_three_times_as_long(way: str) -> None:
    tokens, width, vocabulary = 4096, 1024, 50257
    shapes = {
        "head": (tokens, vocabulary, width),
        "head.dgrad": (tokens, width, vocabulary),
        "head.wgrad": (vocabulary, width, tokens),
    }
    even = tuple(n + 1 if n == vocabulary else n for n in shapes[way])
    assert product_s(way, *shapes[way]) == pytest.approx(3 * product_s(way, *even), rel=0.01)


@pytest.mark.parametrize(("name", "shape"), [("up", (4095, 4096, 1024)), ("up.wgrad", (4096, 1024, 4095))])
def test_numbers_of_tokens_may_be_odd(name: str, shape: tuple[int, ...]) -> None:
    whole = tuple(n + 1 if n == 4095 else n for n in shape)
    assert product_s(name, *shape) == pytest.approx(product_s(name, *whole), rel=0.05)


@pytest.mark.parametrize("operator", [ATTENTION, ATTENTION_BACKWARD], ids=["forward", "backward"])
def test_slower_attention_takes_longer_at_the_same_power(operator: Operator) -> None:
    (fast_s, fast_w), (slow_s, slow_w) = (cost(driven(attention_slowdown=n), operator) for n in (1.0, 1.6))
    assert slow_s == pytest.approx(1.6 * fast_s)
    assert slow_w == pytest.approx(fast_w, rel=0.02)


@pytest.mark.parametrize("operator", [PRODUCT, NORM], ids=["product", "norm"])
def test_slower_attention_is_that_of_attention_alone(operator: Operator) -> None:
    assert cost(driven(attention_slowdown=1.6), operator) == cost(driven(attention_slowdown=1.0), operator)


def test_traffic_is_that_of_operators_that_hbm_bounds() -> None:
    """They move as many bytes at the same rate, so that power stays as it is."""
    plain, twice = driven(traffic=1.0), driven(traffic=2.0)
    assert laws.hbm_bytes(twice, NORM) == 2 * (NORM.bytes_read + NORM.bytes_written)
    (once_s, once_w), (twice_s, twice_w) = cost(plain, NORM), cost(twice, NORM)
    assert twice_s == pytest.approx(2 * once_s)
    assert twice_w == pytest.approx(once_w, rel=0.02)
    bytes_j = [float(operator_switching(gpu, replace(NORM, flops=0)).at_j(gpu, CLOCK)) for gpu in (plain, twice)]
    assert bytes_j[1] == pytest.approx(2 * bytes_j[0])


@pytest.mark.parametrize("operator", [PRODUCT, ATTENTION, ATTENTION_BACKWARD], ids=lambda own: own.kind)
def test_traffic_leaves_products_and_attention_as_they_are(operator: Operator) -> None:
    assert laws.hbm_bytes(driven(traffic=2.0), operator) == operator.bytes_read + operator.bytes_written
    assert cost(driven(traffic=2.0), operator) == cost(driven(traffic=1.0), operator)


def test_copies_beside_products_are_no_traffic_of_theirs() -> None:
    copying = replace(PRODUCT, copies=1, copied_bytes=10**8)
    assert cost(driven(traffic=2.0), copying) == cost(driven(traffic=1.0), copying)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(("group", "slowdown"), [("tp", 2.5), ("cp", 1.0), ("dp", 1.0)])
def test_slower_collectives_are_those_of_tensor_parallelism(group: str, slowdown: float, nodes: int) -> None:
    collective, placement = replace(all_reduce(2**26), group=group), Placement(nodes=nodes, per_node=8 // nodes)
    fast_s, slow_s = (
        float(placed_collective_s(driven(collective_slowdown=n), collective, placement, CLOCK, np.array(24.0)))
        for n in (1.0, 2.5)
    )
    assert slow_s == pytest.approx(slowdown * fast_s)
