"""Fitting software profiles: a hidden profile is found again, and files keep their comments."""

from dataclasses import replace

import pytest
from helpers.builders import CONFIG
from helpers.iterations import LLAMA

from kareus.fidelity.iterations.fit import PRIORS, IterationData, fit_software, fitted_numbers, groups_of
from kareus.fidelity.iterations.fit_output import documented
from kareus.fidelity.iterations.workloads import IterationSubjects
from kareus.workload.software import Accounting, is_software

HIDDEN = {"host_launch_s": 4e-5, "attention_slowdown": 1.3, "traffic": 1.8}


class _Predictor:
    """Predictions linear in the numbers: rows differ in what they are bound by."""

    def predict(self, subject):
        software, tokens = subject.software, subject.workload.sequence_length
        time_s = tokens * 1e-4 * software.traffic + tokens**2 * 1e-8 * software.attention_slowdown
        return _Time(time_s + subject.workload.num_microbatches * software.host_launch_s * 1e3)


class _Time:
    def __init__(self, time_s):
        self.time_s = time_s


def _data():
    subjects = IterationSubjects((), CONFIG)
    rows = [
        replace(LLAMA, seq_len=tokens, num_microbatches=8 * count)
        for tokens in (1024, 8192, 65536)
        for count in (1, 4, 16)
    ]
    ran = [subjects.of(row) for row in rows]
    measured = [
        replace(row, iteration_time_s=_Predictor().predict(replace(s, software=replace(s.software, **HIDDEN))).time_s)
        for row, s in zip(rows, ran, strict=True)
    ]
    return IterationData(measured, ran)


def test_a_hidden_profile_is_found():
    found = fit_software(_data(), {"host_launch_s": 2e-5, "attention_slowdown": 1.0, "traffic": 1.0}, _Predictor())
    assert found == pytest.approx(HIDDEN, rel=0.05)


def test_a_profile_has_three_numbers_by_what_it_runs():
    nemo = IterationSubjects((), CONFIG).of(LLAMA).software
    assert fitted_numbers(nemo) == tuple(HIDDEN)
    traces = replace(nemo, accounting=Accounting.TRACES)
    assert fitted_numbers(traces) == ("host_launch_s", "collective_slowdown", "traffic")
    assert set(fitted_numbers(traces)) <= set(PRIORS)


def test_models_are_left_out_and_sizes_of_a_single_one():
    rows = [LLAMA, replace(LLAMA, model="GPT3-175B"), replace(LLAMA, family="vtrain-single", hidden=1024, tp=2)]
    assert groups_of(rows) == ["dgxc LLAMA3.1_405B", "dgxc GPT3-175B", "vtrain-single hidden 1024"]


def test_a_profile_keeps_its_comments_and_gets_errors():
    text = "# why\nname: nemo\ntraffic: 1.0\nhost_launch_s: 4.0e-06\n"
    found = documented(text, {"traffic": 2.0, "host_launch_s": 2e-5}, {"dgxc": "68 rows, time 3.0 %"})
    assert found.splitlines() == [
        "# why",
        "# measured iterations: dgxc: 68 rows, time 3.0 %",
        "name: nemo",
        "traffic: 2 # [fit to measured iterations]",
        "host_launch_s: 2.0e-05 # [fit to measured iterations]",
    ]


def test_a_fitted_profile_no_longer_says_it_is_not(tmp_path):
    text = (CONFIG / "software" / "torchtitan.yaml").read_text()
    assert "# NOT FITTED" in text
    found = documented(text, {"traffic": 1.8}, {"own": "4 rows, time 3.0 %"})
    assert "NOT FITTED" not in found
    assert "# measured iterations: own: 4 rows, time 3.0 %\nname: torchtitan" in found
    written = tmp_path / "torchtitan.yaml"
    written.write_text(found)
    assert is_software(written)
