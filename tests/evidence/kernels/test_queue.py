"""Shapes that ran before others in sweeps of attention: the order of the sweep, taken by eight GPUs in turn."""

import pytest
from helpers.kernels import one_kernel

from kareus.evidence.kernels.queue import RUNS, earlier_shapes

SHAPE = {"batch": 1, "seq_len": 1024, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}


def before(run=1, **sizes):
    shapes = earlier_shapes(one_kernel(**SHAPE | sizes))[run - 1]
    if not shapes.ran[0]:
        return None
    return int(shapes.rows.sizes["seq_len"][0]), int(shapes.rows.sizes["batch"][0])


def test_a_gpu_takes_every_fourth_shape_of_two_variants():
    assert before(seq_len=12288, batch=8) == (16384, 8)
    assert before(seq_len=1024, batch=1) == (1024, 16)
    assert before(seq_len=1024, batch=1, run=2) == (1536, 1)


def test_a_gpu_takes_every_eighth_shape_of_one_variant():
    assert before(gpu="b200", seq_len=10240, batch=8) == (16384, 8)
    assert before(gpu="b200", seq_len=12288, batch=1) is None


def test_nothing_of_the_same_heads_ran_before_the_first():
    assert [before(seq_len=16384, batch=batch) for batch in (8, 4, 2, 1)] == [None] * 4
    assert before(seq_len=12288, batch=8, run=2) is None


def test_heads_with_their_own_keys_have_half_the_tokens():
    assert before(kv_heads=32, seq_len=10240, batch=4) == (16384, 1)
    assert before(kv_heads=64, heads=64, head_dim=256, seq_len=10240, batch=2) == (12288, 4)


def test_a_shape_beside_the_sweep_comes_before_the_next():
    assert before(seq_len=1100) == before(seq_len=1024, batch=256)


@pytest.mark.parametrize(("gpu", "software"), [("h100-sxm5-80gb", "VLLM 1"), ("h200", "TRTLLM 1")])
def test_unknown_queues_repeat_the_shape(gpu, software):
    found = [before(run, gpu=gpu, software=software, seq_len=16384) for run in range(1, RUNS + 1)]
    assert found == [(16384, 1)] * RUNS
