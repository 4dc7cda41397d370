"""Predicted kernels: a burst runs free, what lasts is held to the power limit, and L2 holds what fits."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import CONFIG
from helpers.kernels import one_kernel

from kareus.evidence.kernels.predict import predict
from kareus.evidence.kernels.rows import KernelKind, Kernels
from kareus.workload.compose import compose


@pytest.fixture(scope="module")
def gpu():
    (only,) = compose(("gpu=h200",), CONFIG)
    return only.workload.gpu


def gemm(m=8192, n=8192, k=8192, power_w=np.nan, limit_w=np.nan, **row):
    return one_kernel(m=m, n=n, k=k, time_s=1.0, power_w=power_w, limit_w=limit_w, **row)


def test_what_lasts_is_held_to_the_power_limit(gpu):
    lasting = predict(gemm(power_w=600.0), {"h200": gpu})
    assert 0.9 * 700 < lasting.power_w[0] <= 700
    held = predict(gemm(power_w=600.0, limit_w=500.0), {"h200": gpu})
    assert held.power_w[0] <= 500
    assert held.time_s[0] > lasting.time_s[0]


def test_a_short_burst_is_over_before_the_limit_takes_hold(gpu):
    free = dataclasses.replace(gpu, power_limit_w=99_000.0)
    short, long = gemm(1024, 1024, 4096), gemm(32768, 8192, 8192)
    kept = [predict(rows, {"h200": gpu}).time_s[0] / predict(rows, {"h200": free}).time_s[0] for rows in (short, long)]
    assert kept[0] == pytest.approx(1, abs=0.02)
    assert kept[1] > 1.05


def test_operands_that_fit_the_cache_are_not_read_again(gpu):
    fitting, spilling = (predict(gemm(m, 32, 4096), {"h200": gpu}) for m in (1024, 32768))
    assert fitting.hbm_bytes[0] < 0.01 * 2 * (1024 * 4096 + 32 * 4096 + 1024 * 32)
    assert spilling.hbm_bytes[0] > 0.95 * 2 * 32768 * 4096


def test_fp8_is_faster_where_casting_is_little(gpu):
    both = [predict(gemm(8192, 16384, 8192, number_format=f), {"h200": gpu}).time_s[0] for f in ("bfloat16", "fp8")]
    assert both[1] < 0.75 * both[0]
    small = [predict(gemm(2048, 128, 128, number_format=f), {"h200": gpu}).time_s[0] for f in ("bfloat16", "fp8")]
    assert small[1] > 2 * small[0]


def test_a_library_runs_with_its_own_coefficients(gpu):
    slow = dataclasses.replace(gpu, libraries={"slow": {"gemm_efficiency": 0.1}})
    fast, own = (predict(gemm(software=s), {"h200": slow}).time_s[0] for s in ("VLLM 1", "SLOW 2"))
    assert own > 3 * fast


def test_all_rows_at_once_are_predicted_as_each_alone(gpu):
    rows = [gemm(1024 * i, 512 * i, 300 * i, power_w=p) for i in (1, 3, 9) for p in (np.nan, 400.0)]
    columns = {f.name: np.concatenate([getattr(r, f.name) for r in rows]) for f in dataclasses.fields(Kernels)
               if f.name not in ("kind", "sizes")}  # fmt: skip
    sizes = {name: np.concatenate([r.sizes[name] for r in rows]) for name in ("m", "n", "k")}
    together = predict(Kernels(kind=KernelKind.GEMM, sizes=sizes, **columns), {"h200": gpu})
    for i, row in enumerate(rows):
        alone = predict(row, {"h200": gpu})
        assert together.time_s[i] == pytest.approx(alone.time_s[0], rel=1e-9)
        assert together.power_w[i] == pytest.approx(alone.power_w[0], rel=1e-6)
