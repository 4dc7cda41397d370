"""What a power meter shows: all of a long run, little of a short one, and what was before it."""

import numpy as np
import pytest
from helpers.kernels import one_kernel

from kareus.evidence.kernels.meter import WARM_UPS, EarlierRuns, Readings, reading_w
from kareus.evidence.kernels.queue import earlier_shapes
from kareus.evidence.kernels.rows import KernelKind

GEMM = {"m": 1024, "n": 4096, "k": 4096}
ATTENTION = {"batch": 1, "seq_len": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128, "window": 0}


def shown(
    time_s, software="VLLM 1", gpu="h200", reading=1.0, number_format="bfloat16", copies=None, earlier_w=600.0, **sizes
):
    base = ATTENTION if "seq_len" in sizes else GEMM
    row = {"gpu": gpu, "software": software, "number_format": number_format, "time_s": time_s, "power_w": reading}
    rows = one_kernel(**row, **base | sizes)
    readings = Readings(
        rows=rows,
        time_s=rows.time_s,
        power_w=np.array([600.0]),
        idle_w=100.0,
        launch_s=2e-6,
        overhead_s=2e-6,
        copies=np.array([float(copies or (1 if "seq_len" in sizes else 6))]),
        weights_s=np.array([1e-5]),
        stretch=np.ones(1),
        earlier=[
            EarlierRuns(shapes=shapes, time_s=rows.time_s, power_w=np.array([earlier_w]), stretch=np.ones(1))
            for shapes in (earlier_shapes(rows) if rows.kind is KernelKind.ATTENTION else ())
        ],
    )
    return float(reading_w(readings)[0])


def test_a_run_among_runs_of_a_second_shows_its_power():
    assert shown(1e-3) == pytest.approx(600, rel=0.01)


def test_a_short_run_after_a_pause_shows_little():
    """After a compilation: half of 18,000 times 10 us, 3,000 times 13 us with scales of blocks, and warming up."""
    seen_s = 0.18 / 2 + 3_000 * 1.3e-5 + WARM_UPS * 6 * 1e-5
    assert shown(1e-5, m=32768) == pytest.approx(100 + seen_s * 500, rel=0.02)


def test_a_long_run_after_a_pause_shows_half():
    assert shown(1e-3, m=1025, gpu="b200", k=65536) == pytest.approx(100 + (0.5 + WARM_UPS * 6 * 1e-3) * 500, rel=0.02)


def test_a_short_run_after_others_shows_most_of_it():
    assert 500 < shown(1e-5, n=64) < 600
    assert 500 < shown(1e-5, m=1025, gpu="b200") < 600
    assert shown(1e-5, m=32768, gpu="b200") < 200


def test_a_run_beside_slow_launches_shows_less():
    """After a known GEMM with scales of blocks the GPU was busy for a part of its run, as Python launches it."""
    assert shown(1e-5, m=1280, n=1024, k=768) < shown(1e-5, n=64) - 20


def test_a_queue_begins_after_a_pause_and_warms_up():
    readings = [shown(2e-5, m=m, software="TRTLLM 1", copies=5) for m in (32768, 2816, 1024)]
    assert readings == sorted(readings)
    assert readings[0] == pytest.approx(100 + 500 * 0.3 / 2, rel=0.02)
    assert readings[2] > 500


def test_the_first_gpu_that_is_free_takes_the_next_height():
    """The ninth height follows the shortest run of eight, not the longest, so that its reading remembers little."""
    eighth, ninth = (shown(2e-5, m=m, software="TRTLLM 1", copies=5) for m in (3841, 3840))
    assert eighth == pytest.approx(100 + 500 * 0.3 / 2, rel=0.02)
    assert ninth == pytest.approx(100 + 500 * (0.3 / 2 + 0.3), rel=0.05)


def test_a_height_beside_the_sweep_counts_as_the_next():
    others = [shown(2e-5, m=m, software="TRTLLM 1", copies=5) for m in (3839, 3840, 1000, 1024)]
    assert others[0] == pytest.approx(others[1], rel=0.01)
    assert others[2] == pytest.approx(others[3], rel=0.02)


def test_a_queue_in_fp8_follows_reads_of_weights():
    assert shown(2e-5, m=32768, software="TRTLLM 1", copies=5, number_format="fp8") > 100 + 500 * 0.3


def test_repetitions_count_the_copies_of_weights():
    few, many = (shown(2e-5, m=32768, software="TRTLLM 1", copies=copies) for copies in (1, 5))
    assert (few - 100) * 5 == pytest.approx(many - 100, rel=0.02)


def test_attention_pauses_before_every_run():
    """A second of runs of 1 ms, between pauses of 0.1 s on the hosts of the H200 and 0.05 s on those of the B200."""
    for gpu, pause_s in (("h200", 0.1), ("b200", 0.05)):
        assert shown(1e-3, seq_len=1024, gpu=gpu) == pytest.approx(600 - 500 * pause_s, rel=0.01)
    assert shown(1e-3, seq_len=1024) > shown(1e-3, seq_len=1024, batch=64) + 10


def test_attention_shows_what_ran_before_it():
    """Runs of 0.03 s between pauses of 0.1 s: at its end a reading has seen 0.03 s of its own run."""
    shares = [(shown(1e-5, seq_len=1024, earlier_w=power_w) - 100) / 500 for power_w in (100.0, 600.0)]
    assert shares == pytest.approx([0.03 / 2, 0.03 / 0.13], rel=0.1)


def test_the_first_shapes_of_other_heads_follow_next_to_nothing():
    first = shown(1e-3, seq_len=16384, batch=4)
    assert first == pytest.approx(350, rel=0.03)
    assert shown(1e-3, seq_len=8192) > 540
    assert shown(1e-3, seq_len=16384, batch=4, gpu="b200", software="TRTLLM 1") == pytest.approx(first, rel=0.01)
    assert shown(1e-3, seq_len=16384, batch=1, gpu="b200", software="TRTLLM 1") > 560
    assert shown(1e-3, seq_len=12288, batch=1, gpu="b200") == pytest.approx(first, rel=0.01)


@pytest.mark.parametrize("software", ["SGLang 0.5.10", "CUTLASS 4", "vllm-fork 1"])
def test_readings_of_no_known_sweep_are_the_power(software):
    assert shown(1e-5, software=software, m=32768) == 600
    assert shown(1e-3, software=software, seq_len=16384) == 600
    assert np.isnan(shown(1e-3, software=software, reading=np.nan))


def test_nothing_is_shown_of_what_was_not_read():
    assert np.isnan(shown(1e-3, reading=np.nan))
