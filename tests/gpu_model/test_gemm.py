"""The law of GEMMs: tiles, waves, splits, and what each coefficient does."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import plain_a100

from kareus.errors import ConfigError
from kareus.gpu_model.gemm import PARTIAL_SUM_BYTES, SPLITS, GemmShape, arithmetic_s, resident_share

HBM = 1.4e12
CLOCK, SMS = np.asarray(1410.0), np.asarray(108.0)


def time_s(shape, gpu=None, hbm_bytes_per_s=HBM, clock_mhz=CLOCK):
    return float(arithmetic_s(gpu or plain_a100(), shape, clock_mhz, SMS, hbm_bytes_per_s))


def with_coefficients(gpu, **values):
    return dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **values))


def test_a_wave_more_takes_as_long_as_a_wave():
    one, two = time_s(GemmShape(128 * 108, 128, 512)), time_s(GemmShape(128 * 109, 128, 512))
    gpu = with_coefficients(plain_a100(), gemm_split_s=1.0)  # never worth it
    assert time_s(GemmShape(128 * 109, 128, 512), gpu) == pytest.approx(2 * time_s(GemmShape(128 * 108, 128, 512), gpu))
    assert one < two <= 2 * one


def test_partial_sums_of_a_split_move_through_memory():
    """What a slower memory adds is the time of partial sums, written once and read once."""
    shape = GemmShape(128, 128 * 13, 65536)
    added_s = time_s(shape, hbm_bytes_per_s=1.3e12) - time_s(shape, hbm_bytes_per_s=1.4e12)
    moved_bytes = added_s / (1 / 1.3e12 - 1 / 1.4e12)
    parts = moved_bytes / (2 * PARTIAL_SUM_BYTES * 128 * 128 * 13)
    assert any(parts == pytest.approx(one, rel=1e-6) for one in SPLITS)


def test_a_split_costs_its_synchronisation():
    shape, gpu = GemmShape(128, 128 * 13, 65536), plain_a100()
    assert time_s(shape, with_coefficients(gpu, gemm_split_s=1e-6)) == pytest.approx(time_s(shape, gpu) + 1e-6)


def test_an_epilogue_takes_time_in_proportion_to_its_bytes():
    """A weight gradient that is added to fp32 reads and writes four times the bytes of a 16-bit output."""
    gpu = with_coefficients(plain_a100(), gemm_epilogue_s=1e-10)
    shape = GemmShape(2048, 8192, 4096)
    plain_s, none_s = time_s(shape, gpu), time_s(shape, with_coefficients(plain_a100(), gemm_epilogue_s=0.0))
    summed_s = time_s(dataclasses.replace(shape, written=4.0), gpu)
    assert summed_s - none_s == pytest.approx(4 * (plain_s - none_s))


def test_partial_sums_gain_from_a_fast_cache():
    shape, gpu = GemmShape(128, 128 * 13, 65536), plain_a100()
    assert time_s(shape, with_coefficients(gpu, l2_speedup=2.0)) == pytest.approx(
        time_s(shape, hbm_bytes_per_s=2 * HBM)
    )


def test_the_fastest_of_the_tiles_is_taken():
    gpu, shape = plain_a100(), GemmShape(4096, 4096, 4096)
    single = [time_s(shape, dataclasses.replace(gpu, gemm_tiles=(tile,))) for tile in ((128, 128), (128, 256))]
    both = time_s(shape, dataclasses.replace(gpu, gemm_tiles=((128, 128), (128, 256))))
    assert both == min(single)


def test_large_tiles_load_fewer_operands():
    """Where loading limits: 4 waves of 64 + 64 rows and columns for one of 128 + 128, half of the time."""
    gpu = with_coefficients(plain_a100(), tile_feed_gb_per_s=1.0, gemm_split_s=10.0)
    shape = GemmShape(128 * 108, 128, 8192)
    small, large = (time_s(shape, dataclasses.replace(gpu, gemm_tiles=(tile,))) for tile in ((64, 64), (128, 128)))
    assert small == pytest.approx(2 * large, rel=1e-3)
    assert large == pytest.approx(256 * 8192 * 2 / (1e9 / 108), rel=1e-3)


def test_a_step_takes_its_latency_at_the_least():
    gpu = with_coefficients(plain_a100(), gemm_step_s=1e-3, gemm_split_s=10.0)
    assert time_s(GemmShape(64, 64, 640), gpu) == pytest.approx(10 * 1e-3, rel=1e-3)


def test_the_epilogue_takes_time_for_every_value_of_a_tile():
    shape, gpu = GemmShape(4096, 4096, 4096), plain_a100()
    slower = time_s(shape, with_coefficients(gpu, gemm_epilogue_s=1e-9))
    assert slower - time_s(shape, gpu) == pytest.approx(10 * 128 * 128 * 1e-9, rel=1e-6)  # 1,024 tiles: 10 waves


def test_all_but_partial_sums_scales_with_the_clock():
    gpu = with_coefficients(
        plain_a100(), gemm_epilogue_s=1e-10, gemm_step_s=1e-7, tile_feed_gb_per_s=1e4, gemm_split_s=10.0
    )
    shape = GemmShape(4096, 4096, 4096)
    assert time_s(shape, gpu, clock_mhz=np.asarray(705.0)) == pytest.approx(2 * time_s(shape, gpu))


def test_fp8_multiplies_the_peak_and_halves_what_is_loaded():
    gpu = dataclasses.replace(with_coefficients(plain_a100(), gemm_split_s=10.0, gemm_inner_half=0.0), fp8_speedup=2.0)
    assert time_s(GemmShape(4096, 4096, 4096, in_fp8=True), gpu) == pytest.approx(
        time_s(GemmShape(4096, 4096, 4096), gpu) / 2
    )
    fed = with_coefficients(gpu, tile_feed_gb_per_s=1.0)
    assert time_s(GemmShape(4096, 4096, 4096, in_fp8=True), fed) == pytest.approx(
        time_s(GemmShape(4096, 4096, 4096), fed) / 2, rel=1e-3
    )


def test_many_gemms_at_once_take_what_each_takes_alone():
    random = np.random.default_rng(0)
    m, n, k = (random.integers(1, 9000, 30) for _ in range(3))
    gpu = dataclasses.replace(plain_a100(), gemm_tiles=((64, 64), (128, 128)))
    together = arithmetic_s(gpu, GemmShape(m, n, k), np.full(30, 1410.0), np.full(30, 108.0), np.full(30, HBM))
    alone = [time_s(GemmShape(int(a), int(b), int(c)), gpu) for a, b, c in zip(m, n, k, strict=True)]
    assert np.allclose(together, alone, rtol=1e-12)


def test_operands_stay_in_the_cache_until_it_is_full():
    gpu = plain_a100()  # 40 MiB, of which 70 %
    shares = resident_share(gpu, np.array([1.0, 14.0, 28.0, 56.0]) * 2**20)
    assert shares == pytest.approx([1.0, 1.0, 0.5, 0.0], abs=0.005)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gemm_tiles": ()}, "gemm_tiles=[]: must list at least one tile"),
        ({"gemm_tiles": ((128,),)}, "gemm_tiles=[128]: a tile has two sides"),
        ({"attention_tile": (0, 128)}, "attention_tile=0: must be from 1"),
        ({"libraries": {"vllm": {"speed": 1.0}}}, "libraries.vllm: unknown coefficient speed"),
        ({"libraries": {"vllm": {"attention_s": -1.0}}}, "libraries.vllm.attention_s=-1.0: must be from 0"),
    ],
)
def test_a_gpu_refuses_kernels_that_make_no_sense(changed, said):
    with pytest.raises(ConfigError) as raised:
        plain_a100(**changed)
    assert str(raised.value).startswith(said)


def test_a_library_has_its_own_coefficients():
    gpu = plain_a100(libraries={"vllm": {"attention_s": 1e-5}})
    assert gpu.with_library("vllm").coefficients.attention_s == 1e-5
    assert gpu.with_library("trtllm") == gpu
