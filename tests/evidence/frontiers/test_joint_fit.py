"""Fitting to frontiers and reductions together, on rows that the model itself made."""

import dataclasses

import pytest
from helpers.builders import CONFIG, a100

from kareus.calibrate.coefficient_space import with_coefficients
from kareus.evidence.frontiers import joint_fit
from kareus.evidence.frontiers.joint_fit import PRIORS, fit_jointly
from kareus.evidence.frontiers.predict import PlannedMethods, planned_costs, predicted_percent
from kareus.evidence.frontiers.reference import FrontierRow, ReductionRow, Scenario
from kareus.evidence.frontiers.staged import by_bounds
from kareus.evidence.frontiers.subject import subject
from kareus.gpu_model.gpu import FrequencyRange
from kareus.graph.records import Direction

pytestmark = pytest.mark.slow

SCENARIO = Scenario(model="qwen3-1.7b", cp=1, tp=8, pp=2, num_microbatches=2, microbatch_size=2, seq_len=1024)
ORDER = ["FFBB", "FBFB"]
DIRECTIONS = {"F": Direction.FORWARD, "B": Direction.BACKWARD}
METHODS = ("sequential+perseus", "nanobatching+perseus")
WIDE_STEPS = a100(search_frequencies=FrequencyRange(minimum_mhz=900, maximum_mhz=1410, stride_mhz=102))
"""Six clocks instead of eighteen: every evaluation plans each method at all of them."""
OFF = {"crowding": 2.5, "bus_half_sm_count": 9.0}
FEW = {name: PRIORS[name] for name in (*OFF, "gemm_efficiency", "bus_efficiency", "clock_power_w")}
"""What one step moves: it evaluates once for each."""


@pytest.fixture(scope="module")
def subjects():
    return {SCENARIO: subject(SCENARIO, (), CONFIG).on(WIDE_STEPS)}


@pytest.fixture(scope="module")
def rows(subjects):
    blank = [
        FrontierRow(
            scenario=SCENARIO,
            method=method,
            point=mhz,
            time_s=1.0,
            energy_j=1.0,
            clocks=tuple(tuple((DIRECTIONS[d], mhz) for d in order) for order in ORDER),
        )
        for method in METHODS
        for mhz in (1410, 1230, 1080)
    ]
    costs = planned_costs(blank, subjects)
    return [dataclasses.replace(r, time_s=c.time_s, energy_j=c.energy_j) for r, c in zip(blank, costs, strict=True)]


@pytest.fixture(scope="module")
def tables(subjects):
    planned = PlannedMethods(subjects[SCENARIO], with_transfers=True)
    blank = [
        ReductionRow(
            scenario=SCENARIO, table="max_throughput", metric=metric, given_percent=dict.fromkeys(methods, 0.0)
        )
        for metric in ("time_reduction_pct", "energy_reduction_pct")
        for methods in [(*METHODS, "kareus")]
    ]
    return [dataclasses.replace(row, given_percent=predicted_percent(planned, row)) for row in blank]


def test_one_step_lowers_errors_and_keeps_coefficient_bounds(rows, tables, subjects, monkeypatch):
    off = with_coefficients(WIDE_STEPS, OFF)
    monkeypatch.setattr(joint_fit, "STEPS", 1)
    monkeypatch.setattr(joint_fit, "PRIORS", FEW)
    monkeypatch.setattr(joint_fit, "fit_frontiers", lambda rows, subjects, gpu: joint_fit.Fit(gpu, None))
    fit = fit_jointly(rows, tables, subjects, off)
    before, after = (
        joint_fit.score_reductions(tables, joint_fit.on_gpu(subjects, gpu), by_bounds).reduction_mae_points
        for gpu in (off, fit.gpu)
    )
    assert after < 0.9 * before
    for name, prior in PRIORS.items():
        assert prior.lower * 0.999 <= getattr(fit.gpu.coefficients, name) <= prior.upper * 1.001
