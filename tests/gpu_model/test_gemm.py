"""The law of GEMMs: tiles, waves, splits, and what each coefficient does."""

import dataclasses
import math

import numpy as np
import pytest
from helpers.builders import plain_a100
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.gpu_model.coefficients import coefficients_of_many
from kareus.gpu_model.gemm import (
    FEW_WAVES,
    FP8_ROWS,
    NUMBERS_AT_ONCE,
    PARTIAL_SUM_BYTES,
    SPLITS,
    STEP_BYTES,
    GemmShape,
    arithmetic_s,
    resident_share,
)
from kareus.graph.number_formats import Precision

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
    assert time_s(GemmShape(4096, 4096, 4096, precision=Precision.FP8), gpu) == pytest.approx(
        time_s(GemmShape(4096, 4096, 4096), gpu) / 2
    )
    fed = with_coefficients(gpu, tile_feed_gb_per_s=1.0)
    assert time_s(GemmShape(4096, 4096, 4096, precision=Precision.FP8), fed) == pytest.approx(
        time_s(GemmShape(4096, 4096, 4096), fed) / 2, rel=1e-3
    )


def alike(gpu):
    """A GPU whose grouped GEMMs run at the rate of one."""
    return with_coefficients(gpu, grouped_efficiency=1.0, grouped_step_s=gpu.coefficients.gemm_step_s)


def test_groups_keep_all_sms_busy_but_at_the_end():
    """150 tiles of three groups are no two waves of 108 SMs, as they are of one product."""
    gpu = alike(dataclasses.replace(with_coefficients(plain_a100(), gemm_split_s=10.0), gemm_tiles=((128, 128),)))
    wave_s = time_s(GemmShape(128, 128, 1024), gpu)
    assert time_s(GemmShape(128 * 50, 128, 1024, groups=3), gpu) == pytest.approx(wave_s * 150 / 108)
    assert time_s(GemmShape(128 * 150, 128, 1024), gpu) == pytest.approx(wave_s * 2)
    assert time_s(GemmShape(128, 128, 1024, groups=3), gpu) == pytest.approx(wave_s)


def test_drawn_groups_have_a_last_tile_that_is_half_empty():
    gpu = dataclasses.replace(plain_a100(), gemm_tiles=((128, 128),))
    even, drawn = (GemmShape(1024, 4096, 1024, groups=16, drawn=drawn) for drawn in (False, True))
    assert time_s(drawn, gpu) == pytest.approx(time_s(even, gpu) * 8.5 / 8)


def test_each_format_has_a_rate_of_groups_of_its_own():
    gpu = dataclasses.replace(plain_a100(), fp8_speedup=2.0, fp4_speedup=4.0)
    times_s = [
        time_s(GemmShape(1024, 4096, 4096, precision, groups=8), gpu)
        for precision in (Precision.BF16, Precision.FP8_BLOCKWISE, Precision.FP8, Precision.NVFP4)
    ]
    assert times_s == sorted(times_s, reverse=True)


def test_rows_that_are_not_loaded_whole_make_groups_slow():
    even, odd = (time_s(GemmShape(1024, 4096, inner, groups=8)) for inner in (704, 708))
    assert odd > 4 * even
    assert time_s(GemmShape(1024, 4096, 708)) < 1.1 * time_s(GemmShape(1024, 4096, 704))


@given(rows=st.floats(0.01, 5000), groups=st.integers(1, 300), more=st.floats(1, 3))
def test_grouped_time_grows_with_rows_and_groups(rows, groups, more):
    gpu = plain_a100()
    own = time_s(GemmShape(rows, 768, 2048, groups=groups, drawn=True), gpu)
    assert time_s(GemmShape(rows * more, 768, 2048, groups=groups, drawn=True), gpu) >= own * (1 - 1e-9)
    assert time_s(GemmShape(rows, 768, 2048, groups=groups + 1, drawn=True), gpu) >= own * (1 - 1e-9)


def test_many_gemms_at_once_take_what_each_takes_alone():
    random = np.random.default_rng(0)
    m, n, k = (random.integers(1, 9000, 30) for _ in range(3))
    gpu = dataclasses.replace(plain_a100(), gemm_tiles=((64, 64), (128, 128)))
    together = arithmetic_s(gpu, GemmShape(m, n, k), np.full(30, 1410.0), np.full(30, 108.0), np.full(30, HBM))
    alone = [time_s(GemmShape(int(a), int(b), int(c)), gpu) for a, b, c in zip(m, n, k, strict=True)]
    assert np.allclose(together, alone, rtol=1e-12)


def norm(*times_s):
    return math.hypot(*(time_s**2 for time_s in times_s)) ** 0.5


def looped_s(gpu, shape, clock_mhz, sms, hbm_bytes_per_s):
    """The law in plain numbers, tile by tile and split by split."""
    c, times_s = gpu.coefficients, []
    fp8_rate = gpu.fp8_speedup * c.fp8_efficiency if shape.precision is Precision.FP8 else 1.0
    slower = gpu.maximum_clock_mhz / clock_mhz
    if shape.precision is Precision.FP8 and shape.rows % FP8_ROWS:
        slower *= c.fp8_misalignment
    rate = gpu.bf16_tflops * 1e12 / gpu.sm_count * c.gemm_efficiency * fp8_rate / slower
    for rows, columns in gpu.gemm_tiles:
        tiles = -(-shape.rows // rows) * -(-shape.columns // columns)
        for parts in (1, *SPLITS) if tiles < FEW_WAVES * gpu.sm_count else (1,):
            inner, waves = shape.inner / parts, -(-tiles * parts // sms)
            arithmetic = 2 * rows * columns * (inner + c.gemm_inner_half) / rate
            loaded = inner * shape.value_bytes * (rows + columns) / (c.tile_feed_gb_per_s * 1e9 / gpu.sm_count) * slower
            step_s = c.fp8_step_s if shape.precision is Precision.FP8 else c.gemm_step_s
            steps = inner * shape.value_bytes / STEP_BYTES * step_s * slower
            whole_s = norm(norm(arithmetic, loaded), steps)
            time_s = waves * (whole_s + rows * columns * c.gemm_epilogue_s * slower * shape.written)
            moved = 2 * PARTIAL_SUM_BYTES * shape.rows * shape.columns * parts if parts > 1 else 0
            times_s.append(time_s + moved / (hbm_bytes_per_s * c.l2_speedup) + (parts > 1) * c.gemm_split_s)
    return min(times_s)


def limited_gpu(**values):
    """A GPU on which everything that can limit a GEMM does so for some sizes."""
    gpu = with_coefficients(
        plain_a100(),
        **dict(
            {
                "tile_feed_gb_per_s": 5000.0,
                "gemm_step_s": 7e-8,
                "fp8_step_s": 9e-8,
                "gemm_epilogue_s": 1e-11,
                "gemm_split_s": 1e-6,
                "l2_speedup": 2.0,
                "fp8_misalignment": 1.3,
            },
            **values,
        ),
    )
    return dataclasses.replace(gpu, gemm_tiles=((64, 64), (128, 64), (128, 256)), fp8_speedup=2.0)


@given(
    sizes=st.lists(st.tuples(*[st.integers(1, 12_000)] * 3), min_size=1, max_size=4),
    clocks_mhz=st.lists(st.sampled_from([510.0, 705.0, 1410.0]), min_size=1, max_size=3),
    sms=st.integers(1, 108),
    in_fp8=st.booleans(),
    epilogues_s=st.lists(st.sampled_from([0.0, 1e-11, 1e-10]), min_size=1, max_size=2),
)
def test_all_tiles_and_splits_at_once_are_the_least_of_a_loop(sizes, clocks_mhz, sms, in_fp8, epilogues_s):
    """Over axes of GPUs, of sizes and of clocks, whatever is the fastest on each."""
    rows, columns, inner = (np.array(column)[:, None] for column in zip(*sizes, strict=True))
    shape = GemmShape(rows, columns, inner, precision=Precision.FP8 if in_fp8 else Precision.BF16, written=2.0)
    gpu, clocks = limited_gpu(), np.array(clocks_mhz)
    many = coefficients_of_many(gpu.coefficients, {"gemm_epilogue_s": np.reshape(epilogues_s, (-1, 1, 1))})
    found = arithmetic_s(
        dataclasses.replace(gpu, coefficients=many), shape, clocks, np.full_like(clocks, sms), np.full_like(clocks, HBM)
    )
    expected = [
        [
            [
                looped_s(
                    limited_gpu(gemm_epilogue_s=one_s),
                    dataclasses.replace(shape, rows=m, columns=n, inner=k),
                    f,
                    sms,
                    HBM,
                )
                for f in clocks_mhz
            ]
            for m, n, k in sizes
        ]
        for one_s in epilogues_s
    ]
    assert found.shape == np.shape(expected)
    assert np.allclose(found, expected, rtol=1e-12, atol=0)


def test_more_gemms_than_are_evaluated_at_once_take_what_each_takes_alone():
    random, gpu, count = np.random.default_rng(1), limited_gpu(), NUMBERS_AT_ONCE // 3
    m, n, k = (random.integers(1, 9000, count) for _ in range(3))
    clocks = random.choice([705.0, 1410.0], count)
    together = arithmetic_s(gpu, GemmShape(m, n, k), clocks, np.full(count, 96.0), np.full(count, HBM))
    for place in range(0, count, 50):
        shape = GemmShape(int(m[place]), int(n[place]), int(k[place]))
        assert together[place] == pytest.approx(looped_s(gpu, shape, clocks[place], 96, HBM), rel=1e-12)


def test_no_gemms_take_no_times():
    none = np.empty(0)
    assert arithmetic_s(plain_a100(), GemmShape(none, none, none), none, none, none).shape == (0,)


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
