"""Errors of predicted kernels: means over the rows that count, and what constants would have scored."""

import numpy as np
import pytest

from kareus.evidence.kernels.counted import time_counts
from kareus.evidence.kernels.predict import Predicted, bus_bytes
from kareus.evidence.kernels.rows import KernelKind, Kernels
from kareus.evidence.kernels.score import baselines, errors_by, errors_of


def kernels(kind=KernelKind.GEMM, time_s=(1.0, 2.0), power_w=(np.nan, 400.0), collective=None, **sizes):
    count = len(time_s)
    if kind is KernelKind.GEMM:
        sizes = dict.fromkeys(("m", "n", "k"), (1024,) * count)
    return Kernels(
        kind=kind,
        lines=np.arange(count),
        gpu=np.full(count, "h200"),
        number_format=np.full(count, "bfloat16"),
        software=np.full(count, "VLLM 1"),
        collective=np.array(collective or [""] * count),
        routing=np.array([""] * count),
        sizes={name: np.array(column) for name, column in sizes.items()},
        time_s=np.array(time_s),
        power_w=np.array(power_w),
        power_limit_w=np.full(count, np.nan),
    )


def predicted(time_s, power_w=(np.nan, 300.0), flops=(1.0, 2.0)):
    return Predicted(*(np.array(x, dtype=float) for x in (time_s, power_w, flops, flops)))


def test_errors_are_means_over_rows_and_of_power_over_those_with_it():
    rows = kernels()
    found = errors_of(rows, predicted((1.1, 1.6)), time_counts(rows))
    assert found.time_mape_pct == pytest.approx((10 + 20) / 2)
    assert found.power_mape_pct == pytest.approx(25)
    assert found.energy_mape_pct == pytest.approx(100 * (1 - 300 * 1.6 / (400 * 2.0)))
    assert found.signed_median_pct == pytest.approx(-5)


def test_bursts_and_sustained_rows_are_listed_apart():
    rows = kernels()
    found = errors_by(rows.groups, rows, predicted((1.1, 1.6)), time_counts(rows))
    assert {name: errors.rows for name, errors in found.items()} == {
        "h200 bfloat16 VLLM 1 burst": 1,
        "h200 bfloat16 VLLM 1 sustained": 1,
    }
    assert found["h200 bfloat16 VLLM 1 burst"].power_mape_pct is None


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_a_collective_sends_all_but_its_own_shard(group_size):
    rows = kernels(
        kind=KernelKind.COLLECTIVE,
        collective=["all_reduce", "all_gather"],
        num_gpus=(group_size, group_size),
        message_bytes=(800, 800),
    )
    share = (group_size - 1) / group_size
    assert bus_bytes(rows).tolist() == [2 * share * 800, share * 800]


def test_equal_rates_leave_constants_no_error():
    rows = kernels()
    found = baselines(rows, predicted((1.0, 2.0)), time_counts(rows))
    assert (found.constant_rate_time_mape_pct, found.constant_power_mape_pct) == pytest.approx((0.0, 0.0))
