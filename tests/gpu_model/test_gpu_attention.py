"""The law of fused attention: its tiles counted one by one, and what each coefficient does."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers.builders import plain_a100

from kareus.gpu_model.attention import AttentionShape, arithmetic_s, computed_share, scores, tile_work

CLOCK, SMS = np.asarray(1410.0), np.asarray(108.0)
TILED = dataclasses.replace(plain_a100(), attention_tile=(128, 128))


def shape(length, window=0, heads=32, head_dim=128, packed=1):
    return AttentionShape(
        batch=4, heads=heads, keys=length, queries=length, head_dim=head_dim, window=window, packed=packed
    )


def time_s(one, gpu=TILED, clock_mhz=CLOCK):
    flops = 4 * one.batch * one.heads * one.head_dim * float(scores(one))
    return float(arithmetic_s(gpu, one, flops, 0.5, clock_mhz, SMS))


def with_coefficients(**values):
    return dataclasses.replace(TILED, coefficients=dataclasses.replace(TILED.coefficients, **values))


@pytest.mark.parametrize(("length", "window"), [*itertools.product((128, 1024, 1000, 4096), (0, 128, 1024))])
def test_tiles_are_those_that_queries_pass_over(length, window):
    """Tile i of queries ends with query 128 (i + 1); it passes over keys up to there, from its window on."""
    passed = [
        min(i + 1, -(-(window + 128) // 128) if window else i + 1, -(-length // 128)) for i in range(-(-length // 128))
    ]
    work = tile_work(shape(length, window), (128, 128))
    assert (float(work.query_tiles), float(work.passed)) == (len(passed), sum(passed))
    assert float(work.longest) == max(passed)


def test_packed_tiles_have_fewer_queries_and_a_narrower_band():
    """Four heads in a tile of 128: 32 queries of each, which with a window of 96 see one tile of 128 keys, not two."""
    packed, alone = (tile_work(shape(4096, 96, packed=heads), (128, 128)) for heads in (4, 1))
    assert float(packed.query_tiles) == float(alone.query_tiles) == 32
    assert (float(packed.longest), float(alone.longest)) == (1, 2)
    assert float(packed.passed) == pytest.approx(32)


def test_packed_tiles_cut_the_diagonal_more_finely():
    one = tile_work(shape(1024, packed=4), (128, 128))
    assert float(one.passed) == pytest.approx(sum(-(-32 * i // 128) for i in range(1, 33)) / 4, rel=0.2)


def test_tiles_of_narrow_heads_are_taller():
    gpu = dataclasses.replace(TILED, narrow_head_queries=192)
    assert float(computed_share(gpu, shape(6144, 128))) == pytest.approx(2, rel=0.02)
    assert float(computed_share(gpu, shape(6144, 128, head_dim=64))) == pytest.approx(3, rel=0.02)
    assert computed_share(plain_a100(), shape(6144, 128)) == 1


@pytest.mark.parametrize("window", [0, 1, 100, 512, 10_000])
def test_scores_are_half_a_square_or_a_band(window):
    keys = np.arange(2048)
    inside = np.minimum(keys + 1, window) if window else keys + 1
    assert float(scores(shape(2048, window))) == pytest.approx(inside.sum(), rel=1e-2, abs=2048)


def test_without_tiles_time_is_flops_over_throughput():
    gpu, one = plain_a100(), shape(4096)
    flops = 4 * 4 * 32 * 128 * 4096**2 / 2
    assert time_s(one, gpu) == pytest.approx(flops / (312e12 * 0.5))


def test_tiles_on_the_diagonal_are_computed_whole():
    """8 tiles of queries: 36 tiles of keys instead of half of 64."""
    assert time_s(shape(1024)) / time_s(shape(1024), plain_a100()) == pytest.approx(36 / 32)


def test_a_window_bounds_the_keys_of_a_query():
    assert time_s(shape(16384, 1024)) < time_s(shape(16384)) / 5


def test_exponentials_take_time_whatever_the_width_of_heads():
    slow = with_coefficients(softmax_s=1e-9)
    added = [time_s(shape(4096, head_dim=d), slow) - time_s(shape(4096, head_dim=d)) for d in (64, 128)]
    assert added[0] == pytest.approx(added[1])
    assert added[0] == pytest.approx(4 * 32 * (32 * 33 / 2) * 128**2 * 1e-9 / 108)


def test_every_tile_of_queries_starts_and_ends():
    added = time_s(shape(4096), with_coefficients(attention_tile_s=1e-5)) - time_s(shape(4096))
    assert added == pytest.approx(4 * 32 * 32 * 1e-5 / 108)


def test_the_longest_tile_bounds_the_time_of_few():
    one = AttentionShape(batch=1, heads=1, keys=4096, queries=4096, head_dim=128)
    per_tile_s = 4 * 128**3 / (312e12 * 0.5 / 108)
    assert time_s(one) == pytest.approx(32 * per_tile_s)


def test_a_tile_of_keys_takes_its_latency_at_the_least():
    """One head on an idle GPU: 32 tiles of keys one after the other, however narrow it is."""
    gpu = with_coefficients(attention_step_s=1e-4)
    for head_dim in (32, 64):
        one = AttentionShape(batch=1, heads=1, keys=4096, queries=4096, head_dim=head_dim)
        assert time_s(one, gpu) == pytest.approx(32 * 1e-4)
    assert time_s(shape(16384), gpu) < 1.1 * time_s(shape(16384))


def test_few_tiles_split_their_keys_where_that_pays():
    """32 tiles on 108 SMs: three parts in one wave, or six in two."""
    gpu, one = with_coefficients(attention_split_s=1e-6), AttentionShape(1, 1, 4096, 4096, 128)
    assert time_s(one, gpu) == pytest.approx(time_s(one) / 3 + 1e-6)
    assert time_s(one, with_coefficients(attention_split_s=1.0)) == time_s(one)
    many = AttentionShape(1, 3, 4096, 4096, 128)
    assert time_s(many, gpu) == time_s(many)


def test_a_tail_idles_for_a_share_of_the_longest_tile():
    added = time_s(shape(4096), with_coefficients(attention_tail=0.5)) - time_s(shape(4096))
    assert added == pytest.approx(0.5 * 32 * 4 * 128**3 / (312e12 * 0.5 / 108))


def test_wide_heads_slow_attention_down():
    gpu = with_coefficients(wide_head_slowdown=1.5, widest_head_slowdown=2.0)
    ratios = [time_s(shape(4096, head_dim=d), gpu) / time_s(shape(4096, head_dim=d)) for d in (64, 128, 256, 512)]
    assert ratios == pytest.approx([1.0, 1.0, 1.5, 3.0])


def test_attention_scales_with_the_clock():
    gpu = with_coefficients(softmax_s=1e-10, attention_tile_s=1e-6, attention_tail=0.3)
    assert time_s(shape(4096), gpu, np.asarray(705.0)) == pytest.approx(2 * time_s(shape(4096), gpu))
