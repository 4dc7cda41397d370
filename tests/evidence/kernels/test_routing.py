"""Loads of the busiest rank: all copies are somewhere, none are more than tokens, and skew is what it says."""

import pytest
from helpers.builders import CONFIG
from helpers.kernels import one_kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.evidence.kernels.predict import predict
from kareus.evidence.kernels.routing import POWER_LAWS, ROUTINGS, rank_load
from kareus.workload.compose import compose


@settings(max_examples=30)
@given(
    tokens=st.integers(256, 16384),
    ranks=st.sampled_from([1, 2, 4, 8, 16]),
    here=st.integers(1, 16),
    topk=st.integers(1, 8),
    routing=st.sampled_from(ROUTINGS),
)
def test_the_busiest_rank_has_its_share_or_more(tokens: int, ranks: int, here: int, topk: int, routing: str) -> None:
    experts = ranks * here
    topk = min(topk, experts)
    load = rank_load(tokens, experts, topk, ranks, routing)
    assert tokens * topk / ranks * (1 - 1e-9) <= load.copies <= tokens * min(topk, here) * (1 + 1e-9)
    assert 1 <= load.groups <= here
    if ranks == 1:
        assert load.copies == pytest.approx(tokens * topk)


def test_a_steeper_law_loads_the_busiest_rank_more() -> None:
    loads = [rank_load(8192, 128, 8, 16, routing).copies for routing in ROUTINGS]
    assert loads == sorted(loads)
    assert loads[-1] > 2 * loads[0]


def seconds(gpu, routing="balanced", number_format="bfloat16", **changes):
    sizes = {"num_tokens": 8192, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128,
             "moe_tp_size": 1, "moe_ep_size": 8} | changes  # fmt: skip
    row = one_kernel(routing=routing, number_format=number_format, **sizes)
    return float(predict(row, {"h200": gpu}).time_s[0])


def test_experts_take_longer_with_more_work_and_less_on_more_ranks() -> None:
    (only,) = compose(("gpu=h200",), CONFIG)
    gpu = only.workload.gpu
    own = seconds(gpu)
    assert seconds(gpu, num_tokens=16384) > 1.5 * own
    assert seconds(gpu, moe_ep_size=1) > 2 * own
    assert seconds(gpu, moe_ep_size=1, moe_tp_size=8) < seconds(gpu, moe_ep_size=1)
    assert seconds(gpu, number_format="fp8") < seconds(gpu, number_format="fp8_block")
    assert all(seconds(gpu, routing=routing) > own for routing in POWER_LAWS)
