import dataclasses

import pytest
from helpers.pipelines import pipeline_slice

from kareus.pipeline.config import PipelineConfig, PipelineSchedule, PipelineSlice
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.solver.dag import build_dag, makespan
from kareus.pipeline.transfers import transfers_s


def config(**parallelism: int) -> PipelineSlice:
    own = pipeline_slice(**parallelism)
    gpu = dataclasses.replace(own.gpu, gpus_per_node=8, node_gb_per_s=50.0, link_gb_per_s=300.0)
    return dataclasses.replace(own, gpu=gpu)


def replace_chunks(pipeline: PipelineConfig) -> PipelineConfig:
    return dataclasses.replace(pipeline, schedule=PipelineSchedule.INTERLEAVED, chunks=2)


TENSOR = 8 * 4096 * 3072 * 2  # bytes: 8 sequences of 4,096 tokens of 3,072 values


def test_stages_on_different_nodes_share_the_node_bandwidth():
    share, rest = TENSOR / 8, TENSOR * 7 / 8
    assert transfers_s(config(tp=8)) == pytest.approx((share / (50e9 / 8) + rest / 300e9,))


def test_stages_in_one_domain_send_over_its_links():
    own = config(tp=8, pp=4)
    domain = dataclasses.replace(own, gpu=dataclasses.replace(own.gpu, nvlink_domain=16))
    near, far, near_again = transfers_s(domain)
    assert near == near_again == pytest.approx(TENSOR / 300e9)
    assert far == pytest.approx(transfers_s(own)[1])


def test_context_parallelism_splits_the_tokens():
    # Half of the tokens on each of two groups; a quarter of that on each GPU.
    share, rest = TENSOR / 2 / 4, TENSOR / 2 * 3 / 4
    assert transfers_s(config(tp=4, cp=2)) == pytest.approx((share / (50e9 / 8) + rest / 300e9,))


def test_stages_of_half_a_node_alternate_links_and_network():
    near, far, near_again = transfers_s(config(tp=4, pp=4))
    assert near == near_again == pytest.approx(TENSOR / 300e9)
    assert far == pytest.approx(TENSOR / 4 / (50e9 / 8) + TENSOR * 3 / 4 / 300e9)


def test_one_pair_of_gpus_on_two_nodes_holds_up_the_others():
    """Of stages of six GPUs, pairs 0-6 and 1-7 share a node of eight, pairs 2-8 to 5-11 do not."""
    share, rest = TENSOR / 3 / 2, TENSOR / 3 / 2
    assert transfers_s(config(tp=2, cp=3)) == pytest.approx((share / (50e9 / 8) + rest / 300e9,))


def test_the_last_pair_of_gpus_may_be_the_one_on_two_nodes():
    """Stages of three GPUs: 5-8 crosses nodes of eight, as do 6-9 and 7-10."""
    near, far = TENSOR / 3 / 300e9, TENSOR / 3 / (50e9 / 8)
    assert transfers_s(config(tp=1, cp=3, pp=4)) == pytest.approx((near, far, far))


def test_replicas_of_a_stage_move_the_next_one_to_another_node():
    (alone,), (replicated,) = transfers_s(config(tp=4)), transfers_s(config(tp=4, dp=2))
    assert alone == pytest.approx(TENSOR / 300e9)
    assert replicated == pytest.approx(TENSOR / 4 / (50e9 / 8) + TENSOR * 3 / 4 / 300e9)


def test_chunks_close_the_ring_from_the_last_stage_to_the_first():
    own = config(tp=4, pp=3)
    ring = dataclasses.replace(own, pipeline=replace_chunks(own.pipeline))
    near, far, back = transfers_s(ring)
    assert (near, far) == transfers_s(own)  # two stages on the first node, one on the second
    assert back == far
    instructions = pipeline_instructions(PipelineSchedule.INTERLEAVED, 3, 3, chunks=2)
    dag = build_dag(instructions, (near, far, back))
    up, down = near + far, far + near
    alone = makespan(dag, [1e-9 if i.key.microbatch else 1.0 for i in instructions])
    assert alone == pytest.approx(12 + up + back + up + down + back + down, rel=1e-6)


def test_one_stage_sends_nothing():
    assert transfers_s(config(tp=8, pp=1)) == ()


def test_a_message_between_nodes_is_as_slow_as_the_network():
    plain = config(tp=8)
    coefficients = dataclasses.replace(plain.gpu.coefficients, network_slowdown=3.0)
    slow = dataclasses.replace(plain, gpu=dataclasses.replace(plain.gpu, coefficients=coefficients))
    share, rest = TENSOR / 8, TENSOR * 7 / 8
    assert transfers_s(slow) == pytest.approx((3 * share / (50e9 / 8) + rest / 300e9,))
