"""Rows that count: what a benchmark did to the others shows in the readings and times of the shipped sweeps."""

import numpy as np
import pytest
from helpers.builders import CONFIG
from helpers.kernels import one_kernel

from kareus.evidence import shipped_files
from kareus.evidence.kernels.answer import answer_kernels
from kareus.evidence.kernels.counted import power_counts, time_counts
from kareus.evidence.kernels.rows import KernelKind, Kernels, kind_of, read_kernels
from kareus.prediction.lines import read_lines

GEMM = {"m": 8192, "n": 8192, "k": 8192}
ATTENTION = {"batch": 16, "seq_len": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}


@pytest.fixture(scope="module", params=["kernel_gemm", "kernel_attention"])
def answer(request):
    path = shipped_files()[request.param]
    header, lines = read_lines(path)
    return answer_kernels(read_kernels(kind_of(header), lines, path), (), CONFIG)


def test_small_messages_and_all_to_alls_do_not_count():
    rows = Kernels(
        kind=KernelKind.COLLECTIVE,
        **{name: np.full(3, "") for name in ("gpu", "number_format", "software")},
        lines=np.arange(3),
        collective=np.array(["all_reduce", "alltoall", "all_gather"]),
        routing=np.array([""] * 3),
        sizes={"num_gpus": np.full(3, 8), "message_bytes": np.array([2**20, 2**20, 2**20 - 1])},
        time_s=np.ones(3),
        power_w=np.full(3, 300.0),
        power_limit_w=np.full(3, np.nan),
    )
    assert time_counts(rows).tolist() == [True, False, False]
    assert not power_counts(rows).any()


@pytest.mark.parametrize(
    ("row", "times", "powers"),
    [
        (GEMM, True, True),
        (GEMM | {"time_s": 1e-4}, True, False),  # shorter than a reading looks back
        (GEMM | {"software": "TRTLLM 1"}, True, False),  # pauses of a queue
        (GEMM | {"time_s": 1e-4, "software": "mine 1"}, True, True),
        (GEMM | {"n": 65536, "k": 16384}, False, False),  # weights without values
        (GEMM | {"n": 65536, "k": 16384, "software": "mine 1"}, True, True),
        (GEMM | {"n": 65536, "k": 16384, "number_format": "fp8"}, True, True),  # a cast writes them
        (GEMM | {"gpu": "b200", "m": 2048}, False, False),  # the sweep began anew
        (GEMM | {"gpu": "b200"}, True, True),
        (GEMM | {"power_w": np.nan}, True, False),
        (ATTENTION, True, True),
        (ATTENTION | {"batch": 8}, True, False),  # a pause before it
        (ATTENTION | {"seq_len": 12288}, True, False),
        (ATTENTION | {"time_s": 5e-4}, True, False),
    ],
)
def test_a_row_counts_where_it_is_the_kernel_that_was_measured(row, times, powers):
    rows = one_kernel(**row)
    assert (time_counts(rows).tolist(), power_counts(rows).tolist()) == ([times], [powers])


def test_readings_that_do_not_count_are_further_off(answer):
    rows, predicted = answer.kernels, answer.predicted
    counts = power_counts(rows)
    other = rows.sustained & ~counts
    errors = np.abs(predicted.power_w / rows.power_w - 1)
    assert counts.sum() > 500
    assert errors[counts].mean() < 0.6 * errors[other].mean()
