import dataclasses
from pathlib import Path

import pytest

from kareus.pipeline.transfers import transfers_s
from kareus.workload.resolve import resolve_accepted
from kareus.workload.slices import PipelineSlice, cut

ROOT = Path(__file__).parents[2]


def config(tp: int, cp: int = 1, pp: int = 2, dp: int = 1) -> PipelineSlice:
    """8 sequences of 4,096 tokens of 3,072 values: a tensor of 201,326,592 bytes."""
    (workload,) = resolve_accepted(["microbatch_size=8"], ROOT / "config").values()
    full: PipelineSlice = cut(workload, "pipeline")
    return dataclasses.replace(
        full,
        parallelism=dataclasses.replace(full.parallelism, tp=tp, cp=cp, pp=pp, dp=dp, layers_per_stage=(1,) * pp),
        gpu=dataclasses.replace(full.gpu, gpus_per_node=8, node_gb_per_s=50.0, link_gb_per_s=300.0),
    )


TENSOR = 8 * 4096 * 3072 * 2


def test_stages_on_different_nodes_share_the_node_bandwidth_and_gather_over_links():
    share, rest = TENSOR / 8, TENSOR * 7 / 8
    assert transfers_s(config(tp=8)) == pytest.approx((share / (50e9 / 8) + rest / 300e9,))


def test_context_parallelism_splits_the_tokens():
    # Half of the tokens on each of two groups; a quarter of that on each GPU.
    share, rest = TENSOR / 2 / 4, TENSOR / 2 * 3 / 4
    assert transfers_s(config(tp=4, cp=2)) == pytest.approx((share / (50e9 / 8) + rest / 300e9,))


def test_stages_of_half_a_node_alternate_between_links_and_the_network():
    near, far, near_again = transfers_s(config(tp=4, pp=4))
    assert near == near_again == pytest.approx(TENSOR / 300e9)
    assert far == pytest.approx(TENSOR / 4 / (50e9 / 8) + TENSOR * 3 / 4 / 300e9)


def test_replicas_of_a_stage_push_the_next_stage_to_another_node():
    (alone,), (replicated,) = transfers_s(config(tp=4)), transfers_s(config(tp=4, dp=2))
    assert alone == pytest.approx(TENSOR / 300e9)
    assert replicated == pytest.approx(TENSOR / 4 / (50e9 / 8) + TENSOR * 3 / 4 / 300e9)


def test_one_stage_sends_nothing():
    assert transfers_s(config(tp=8, pp=1)) == ()
