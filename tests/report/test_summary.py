from dataclasses import replace

import polars as pl
import pytest
from helpers.report_tables import WORKLOAD, Names, with_runs, write_inputs

from kareus.pipeline.compare import compare_methods
from kareus.pipeline.spread import SavingsErrors
from kareus.report.workload.inputs import load
from kareus.report.workload.page import workload_page
from kareus.report.workload.savings import ERRORS_NOTE
from kareus.report.workload.summary import MEASURED_WHOLE, NOT_SEARCHED, plan_rows, summary_text
from kareus.workload.config import NO_COLLECTIVES, NO_HALVES


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return load(WORKLOAD, write_inputs(tmp_path_factory.mktemp("results")))


def test_chosen_plans_are_compared_at_max_throughput(inputs):
    fastest, deadline = plan_rows(inputs.iteration, list(inputs.plans.values()))
    assert (fastest.selector, deadline.selector) == ("fastest", "deadline=4s")
    assert (fastest.time_reduction_percent, fastest.energy_reduction_percent) == pytest.approx((25, 30))
    assert (deadline.time_reduction_percent, deadline.energy_reduction_percent) == pytest.approx((0, 40))
    assert fastest.gap == pytest.approx(0.01)


def test_static_and_dynamic_energy_add_up(inputs):
    for row in (*compare_methods(inputs.iteration), *plan_rows(inputs.iteration, list(inputs.plans.values()))):
        assert row.static_energy_j + row.dynamic_energy_j == pytest.approx(row.energy_j)


def test_the_text_says_what_was_simulated_and_fits_the_terminal(inputs):
    lines = summary_text(inputs).splitlines()
    assert lines[:2] == [WORKLOAD, "simulated testbed, A100-SXM4-40GB, 16 GPUs"]
    assert max(map(len, lines)) <= 100


def test_the_text_stands_in_columns(inputs):
    lines = summary_text(inputs).splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("method") and "static" in line)
    ends = [i for i in range(len(lines[start])) if lines[start + 1][i : i + 2] in ("\u2500 ", "\u2500")]
    for line in lines[start + 2 : start + 7]:
        assert all(line[end] != " " for end in ends[1:]), line


def test_the_text_shows_the_reductions(inputs):
    lines = summary_text(inputs).splitlines()
    kareus = [line.split() for line in lines if line.startswith("kareus")]
    assert kareus[0] == ["kareus", "25.0", "%", "30.0", "%", "3.000", "14.00", "2.88", "11.12"]
    assert kareus[1] == ["kareus", "33.3", "%", "40.0", "%"]
    assert lines[-1].startswith("\u2013: no plan")


def test_the_longest_method_fits_the_terminal(tmp_path):
    names = Names(method="kareus-without-kernel-schedule")
    text = summary_text(load(WORKLOAD, write_inputs(tmp_path, names)))
    assert max(map(len, text.splitlines())) <= 100


def test_what_ran_stands_beside_what_was_predicted(tmp_path, inputs):
    assert "End to end" not in summary_text(inputs)
    text = summary_text(load(WORKLOAD, with_runs(write_inputs(tmp_path), tmp_path)))
    (head,) = [line for line in text.splitlines() if line.startswith("End to end")]
    assert head == "End to end: the plan `fastest` of each method, played back on warm chips for 2 iterations"
    kareus = [line.split() for line in text.splitlines() if line.startswith("kareus")][-1]
    assert kareus == ["kareus", "3.000", "3.300", "+10.0", "%", "14.00", "12.60", "-10.0", "%"]
    assert max(map(len, text.splitlines())) <= 100


def test_summary_and_page_say_why_nothing_overlaps(inputs):
    whole = replace(inputs, iteration=inputs.iteration.filter(~pl.col("method").str.contains("nanobatching")))
    alone = replace(inputs, searches=())
    clocks = replace(alone, iteration=inputs.iteration.filter(pl.col("method").str.starts_with("sequential")))
    in_place = replace(whole, searches=())
    odd = replace(in_place, configured=replace(inputs.configured, microbatch_size=3))
    planned = ((inputs, None), (whole, NO_HALVES), (alone, NO_COLLECTIVES), (clocks, NOT_SEARCHED))
    for shown, reason in (*planned, (in_place, MEASURED_WHOLE), (odd, NO_HALVES)):
        lines = summary_text(shown).splitlines()
        assert [line for line in lines if line.startswith("Nothing overlaps")] == ([reason] if reason else [])
        assert max(map(len, lines)) <= 100
        assert workload_page(shown).extra["overlap"] == (reason or "")


def test_every_saving_says_how_far_noise_may_be_off(inputs):
    errors = SavingsErrors(
        time_reduction=0.12, energy_reduction=0.34, iso_time_energy_reduction=0.56, iso_energy_time_reduction=0.78
    )
    noisy = replace(inputs, savings=tuple(replace(found, errors=errors) for found in inputs.savings))
    text = summary_text(noisy)
    kareus = [line.split() for line in text.splitlines() if line.startswith("kareus")]
    assert kareus[0][1:5] == ["25.0\u00b10.1", "%", "30.0\u00b10.3", "%"]
    assert kareus[1] == ["kareus", "33.3\u00b10.6", "%", "40.0\u00b10.8", "%"]
    assert ERRORS_NOTE in text.splitlines()
    assert max(map(len, text.splitlines())) <= 100
    assert "standard error" not in summary_text(inputs)  # of a model without noise


def test_frontiers_that_are_not_exact_are_named(inputs):
    assert "not exact" not in summary_text(inputs)
    thinned = inputs.microbatch.with_columns(is_thinned=pl.col("frequency_mhz") == 1410)
    (line,) = [x for x in summary_text(replace(inputs, microbatch=thinned)).splitlines() if "not exact" in x]
    assert line.startswith("not exact: at 4 clocks of instructions more than 500 combinations")
