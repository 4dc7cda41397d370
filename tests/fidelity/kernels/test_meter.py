"""What a power meter shows: all of a long run, little of a short one, and what was before it."""

import numpy as np
import pytest

from kareus.fidelity.kernels.meter import Readings, reading_w
from kareus.fidelity.kernels.rows import KernelKind, Kernels


def shown(time_s, m=1024, n=4096, k=4096, software="VLLM 1", gpu="h200", reading=1.0):
    rows = Kernels(
        kind=KernelKind.GEMM,
        lines=np.array([2]),
        gpu=np.array([gpu]),
        number_format=np.array(["bfloat16"]),
        software=np.array([software]),
        collective=np.array([""]),
        sizes={"m": np.array([m]), "n": np.array([n]), "k": np.array([k])},
        time_s=np.array([time_s]),
        power_w=np.array([reading]),
        power_limit_w=np.array([700.0]),
    )
    readings = Readings(rows=rows, time_s=rows.time_s, power_w=np.array([600.0]), idle_w=100.0, overhead_s=2e-6)
    return float(reading_w(readings)[0])


def test_a_run_of_a_second_shows_its_power():
    assert shown(1e-3) == pytest.approx(600)


def test_a_short_run_after_a_pause_shows_little():
    """15,000 times 10 us are 0.15 of the second that a reading looks back."""
    assert shown(1e-5) == pytest.approx(100 + 0.15 * 500)


def test_a_short_run_after_others_shows_most_of_it():
    assert 500 < shown(1e-5, n=64) < 600
    assert 500 < shown(1e-5, m=1025, gpu="b200") < 600
    assert shown(1e-5, m=1024, gpu="b200") < 200


def test_a_queue_begins_after_a_pause_and_warms_up():
    readings = [shown(2e-5, m=m, software="TRTLLM 1") for m in (32768, 2816, 1024)]
    assert readings == sorted(readings)
    assert readings[0] == pytest.approx(100 + 500 * 0.3 / 2)
    assert readings[2] > 300


def test_nothing_is_shown_of_what_was_not_read():
    assert np.isnan(shown(1e-3, reading=np.nan))
