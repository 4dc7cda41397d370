"""Absolute times of sequential iterations."""

import pytest
from helpers.builders import CONFIG

from kareus.evidence.frontiers.reference import Scenario
from kareus.evidence.frontiers.subject import subject
from kareus.evidence.frontiers.throughput import PUBLISHED, counted_flops, read_throughput, score_sequential

LLAMA = Scenario(model="llama3.2-3b", cp=1, tp=8, pp=2, num_microbatches=8, microbatch_size=8, seq_len=4096)
UNPUBLISHED = Scenario(model="llama3.2-3b", cp=1, tp=8, pp=2, num_microbatches=8, microbatch_size=2, seq_len=4096)


def subjects(*scenarios):
    return {scenario: subject(scenario, (), CONFIG) for scenario in scenarios}


def published(method):
    return [row for row in read_throughput(PUBLISHED) if row.method == method]


def test_flops_are_counted_as_the_paper_counts_them():
    """Its table of energies gives both: 99.0 TFLOP/s of each of 16 GPUs, and 5.60 s."""
    (row,) = published("sequential")
    (own,) = subjects(row.scenario).values()
    assert counted_flops(own.workload) / (row.tflops_per_gpu * 1e12 * 16) == pytest.approx(5.60, abs=0.01)


def test_a_throughput_of_another_method_is_converted():
    score = score_sequential(subjects(LLAMA))
    (row,) = (row for row in published("kareus") if row.scenario == LLAMA)
    (found,) = score.sequential_times
    (own,) = subjects(LLAMA).values()
    own_s = counted_flops(own.workload) / (row.tflops_per_gpu * 1e12 * 16)
    assert found.given_time_s * (1 - row.time_reduction_pct / 100) == pytest.approx(own_s)


def test_times_are_at_the_temperature_of_the_gpus_numbers_whatever_the_air():
    times_s = []
    for ambient_c in (20, 45):
        own = {LLAMA: subject(LLAMA, (f"gpu.ambient_c={ambient_c}",), CONFIG)}
        times_s += [time.predicted_time_s for time in score_sequential(own).sequential_times]
    assert times_s[0] == times_s[1]


def test_workloads_without_a_published_throughput_have_no_score():
    assert score_sequential(subjects(UNPUBLISHED)) is None


def test_absolute_times_are_within_three_percent_on_average():
    score = score_sequential(subjects(*(row.scenario for row in published("kareus"))))
    assert len(score.sequential_times) == 5
    assert score.sequential_time_mape_pct < 3.0
