"""Operands that benchmarks leave as memory was: large ones are zeros, which take less energy and more clock."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import CONFIG
from helpers.kernels import one_kernel

from kareus.evidence.kernels.operands import ZERO_ENERGY, switching_share, zero_share
from kareus.evidence.kernels.predict import predict
from kareus.evidence.kernels.rows import KernelKind
from kareus.workload.compose import compose

GEMM = {"m": 4096, "n": 4096, "k": 4096}
ATTENTION = {"batch": 1, "seq_len": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}


def kernels(kind=KernelKind.GEMM, **row):
    return one_kernel(**(GEMM if kind is KernelKind.GEMM else ATTENTION) | row)


def zeros(**row):
    return float(zero_share(kernels(**row))[0])


def test_large_weights_are_zeros_and_small_ones_are_not():
    assert zeros() < 0.01
    assert zeros(n=51200, k=51200) > 0.8
    assert zeros(n=51200, k=16384) == pytest.approx(0.5, abs=0.02)


def test_a_process_with_fresh_memory_has_zeros_in_smaller_weights():
    sizes = {"n": 12288, "k": 12288}
    assert zeros(gpu="b200", m=2561, **sizes) > 0.8
    assert zeros(gpu="b200", m=2816, **sizes) < 0.05
    assert zeros(m=2561, **sizes) == zeros(m=2816, **sizes)


def test_more_of_the_keys_is_zeros_the_more_are_read():
    shares = [zeros(kind=KernelKind.ATTENTION, seq_len=length) for length in (1024, 4096, 16384)]
    assert shares == sorted(shares)
    assert shares[1] == pytest.approx(0.5)


@pytest.mark.parametrize("row", [{"software": "SGLang 0.5.10"}, {"software": "TRTLLM 1"}, {"number_format": "fp8"}])
def test_what_is_initialised_has_no_zeros(row):
    assert zeros(n=51200, k=51200, **row) == 0
    assert switching_share(kernels(n=51200, k=51200, **row))[0] == 1


def test_zeros_take_less_energy_and_more_clock():
    (only,) = compose(("gpu=h200",), CONFIG)
    gpu = dataclasses.replace(only.workload.gpu, libraries={})
    held = [predict(kernels(software=software, n=51200, k=51200), {"h200": gpu}) for software in ("VLLM 1", "Other 1")]
    assert held[0].time_s[0] < 0.95 * held[1].time_s[0]
    free = dataclasses.replace(gpu, power_limit_w=99_000.0)
    rows = [kernels(software=name, limit_w=np.nan, n=51200, k=51200) for name in ("VLLM 1", "Other 1")]
    powers = [predict(own, {"h200": free}).power_w[0] for own in rows]
    assert 1 > powers[0] / powers[1] > ZERO_ENERGY
