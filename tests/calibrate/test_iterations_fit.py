"""Fitting software profiles: a hidden profile is found again, and files keep their comments."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.builders import CONFIG, software
from helpers.iterations import LLAMA

from kareus.calibrate.software_fit import (
    PRIORS,
    IterationData,
    changed,
    errors,
    fit_software,
    fitted_numbers,
    groups_of,
    left_out,
)
from kareus.calibrate.software_output import documented
from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.prediction.measured import MeasuredWorkloads
from kareus.prediction.workload_prediction import predict_time_s
from kareus.software.record import is_software

HIDDEN = {"host_launch_s": 4e-5, "attention_slowdown": 1.3, "traffic": 1.8}
START = {"host_launch_s": 2e-5, "attention_slowdown": 1.0, "traffic": 1.2}
SMALL = replace(
    LLAMA, layers=4, hidden=2048, ffn=8192, heads=16, kv_heads=16, vocab=51200, dp=1, pp=1, tp=1, cp=1, chunks=1,
    num_microbatches=2, sequence_parallel=False, sharding="none", tp_overlap="none",
)  # fmt: skip


@pytest.fixture(scope="module")
def data():
    """Iterations of a hidden profile, without noise: short ones show the host, long ones attention."""
    workloads = MeasuredWorkloads((), CONFIG)
    rows = [replace(SMALL, seq_len=tokens) for tokens in (256, 512, 2048, 4096, 16384, 32768)]
    ran = [workloads.of(row) for row in rows]
    measured = [
        replace(row, iteration_time_s=predict_time_s(changed(workload, HIDDEN)))
        for row, workload in zip(rows, ran, strict=True)
    ]
    return IterationData(measured, ran)


def test_a_hidden_profile_is_found(data):
    assert abs(errors(data, START)).max() > 0.05
    found = fit_software(data, START)
    assert found == pytest.approx(HIDDEN, rel=0.1)
    assert abs(errors(data, found)).max() < 0.01


def test_models_that_were_left_out_are_predicted_by_a_fit_to_the_others(data):
    groups = ["short" if row.seq_len < 2000 else "long" for row in data.rows]
    found = left_out(data, HIDDEN, groups)
    assert np.isfinite(found).all()
    others = data.where([group == "long" for group in groups])
    expected = errors(data.where([group == "short" for group in groups]), fit_software(others, HIDDEN, 4))
    assert found[:2] == pytest.approx(expected)


def test_changed_numbers_are_those_of_the_gpu_that_is_driven(data):
    workload = changed(data.workloads[0], HIDDEN)
    for name, value in HIDDEN.items():
        assert getattr(workload.software, name) == getattr(workload.gpu.coefficients, name) == value


def test_a_profile_has_three_numbers_by_what_it_runs():
    fused = software("megatron-core")
    assert fitted_numbers(fused) == tuple(HIDDEN)
    assert fitted_numbers(software("megatron-2022")) == ("host_launch_s", "instruction_overhead_s", "traffic")
    traces = replace(fused, launches_ahead=LaunchesAhead.PART)
    assert fitted_numbers(traces) == ("host_launch_s", "collective_slowdown", "traffic")
    assert set(fitted_numbers(traces)) <= set(PRIORS)


def test_models_are_left_out_and_sizes_of_a_single_one():
    rows = [LLAMA, replace(LLAMA, model="GPT3-175B"), replace(LLAMA, family="vtrain-single", hidden=1024, tp=2)]
    assert groups_of(rows) == ["dgxc LLAMA3.1_405B", "dgxc GPT3-175B", "vtrain-single hidden 1024"]


def test_a_profile_keeps_its_comments():
    text = "# why\nname: mine\ntraffic: 1.0\nhost_launch_s: 4.0e-06\n"
    found = documented(text, {"traffic": 2.0, "host_launch_s": 2e-5})
    assert found.splitlines() == [
        "# why",
        "name: mine",
        "traffic: 2 # [fit to measured iterations]",
        "host_launch_s: 2.0e-05 # [fit to measured iterations]",
    ]


def test_a_fitted_profile_no_longer_says_it_is_not(tmp_path):
    text = (CONFIG / "software" / "torchtitan.yaml").read_text()
    assert "# NOT FITTED" in text
    found = documented(text, {"traffic": 1.8})
    assert "NOT FITTED" not in found
    assert "\nname: torchtitan" in found
    written = tmp_path / "torchtitan.yaml"
    written.write_text(found)
    assert is_software(written)
