"""Fitting, on rows that the model itself made: what was put in must come out."""

import dataclasses

import numpy as np
import pytest
import yaml
from helpers.builders import CONFIG, a100

from kareus.calibrate.coefficient_space import space_of, with_coefficients
from kareus.evidence.fit_stage import documented
from kareus.evidence.frontiers.fit import TO_FRONTIERS, Fit, bootstrap, errors_pct, fit_frontiers, held_out
from kareus.evidence.frontiers.predict import planned_costs
from kareus.evidence.frontiers.reference import FrontierRow, Scenario
from kareus.evidence.frontiers.subject import subject
from kareus.gpu_model.coefficients import OF_SOFTWARE
from kareus.gpu_model.gpu import Uncertainty
from kareus.graph.records import Direction

pytestmark = pytest.mark.slow

SCENARIOS = [
    Scenario(model=model, cp=1, tp=tp, pp=2, num_microbatches=2, microbatch_size=size, seq_len=1024)
    for model, tp, size in (("qwen3-1.7b", 4, 2), ("llama3.2-3b", 8, 4))
]
ORDER = ["FFBB", "FBFB"]
DIRECTIONS = {"F": Direction.FORWARD, "B": Direction.BACKWARD}
TRUTH = {"gemm_efficiency": 0.9, "clock_power_w": 120.0, "bus_efficiency": 0.75}
FEW = {name: TO_FRONTIERS[name] for name in (*TRUTH, "hbm_efficiency")}
"""Each step of a fit tries every coefficient, so that refits of these take a fraction of those of all."""


def row(scenario, method, mhz):
    clocks = tuple(tuple((DIRECTIONS[d], mhz) for d in order) for order in ORDER)
    return FrontierRow(scenario=scenario, method=method, point=mhz, time_s=1.0, energy_j=1.0, clocks=clocks)


@pytest.fixture(scope="module")
def subjects():
    return {scenario: subject(scenario, (), CONFIG) for scenario in SCENARIOS}


@pytest.fixture(scope="module")
def rows(subjects):
    truth = with_coefficients(a100(), TRUTH)
    blank = [
        row(scenario, method, mhz)
        for scenario in SCENARIOS
        for method in ("sequential+perseus", "nanobatching+perseus")
        for mhz in (1410, 1230, 1050)
    ]
    costs = planned_costs(blank, {s: own.on(truth) for s, own in subjects.items()})
    return [dataclasses.replace(r, time_s=c.time_s, energy_j=c.energy_j) for r, c in zip(blank, costs, strict=True)]


@pytest.fixture(scope="module")
def fit(rows, subjects):
    return fit_frontiers(rows, subjects, a100(), evaluations=6)  # errors of 0.6 % at most, with eight of 0.2 %


def test_a_fit_reproduces_what_the_model_made(rows, subjects, fit):
    before = errors_pct(rows, subjects, with_coefficients(a100(), {n: p.value for n, p in TO_FRONTIERS.items()}))
    after = errors_pct(rows, subjects, fit.gpu)
    assert max(after) < 1.0
    assert after[0] < before[0] / 3
    assert after[1] < before[1] / 3


def test_fitted_coefficients_stay_within_their_physical_bounds(fit):
    for name, prior in TO_FRONTIERS.items():
        assert prior.lower * 0.999 <= getattr(fit.gpu.coefficients, name) <= prior.upper * 1.001


@pytest.fixture
def few(fit, monkeypatch):
    """The fit, whose refits move no other coefficients than `FEW`."""
    monkeypatch.setattr("kareus.evidence.frontiers.fit.TO_FRONTIERS", FEW)
    return Fit(fit.gpu, space_of(FEW).logarithms(fit.gpu.coefficients))


def test_a_held_out_workload_is_predicted_from_the_others(rows, subjects, few, monkeypatch):
    monkeypatch.setattr("kareus.evidence.frontiers.fit.HELD_OUT_EVALUATIONS", 2)
    left_out = held_out(rows, subjects, few)
    assert [h.scenario for h in left_out] == SCENARIOS
    for h in left_out:
        assert h.time_mape_pct == pytest.approx(100 * np.abs(h.time_errors).mean())
        assert h.time_mape_pct < 10


def test_the_bootstrap_scatters_around_the_fit_and_repeats(rows, subjects, few, monkeypatch):
    monkeypatch.setattr("kareus.evidence.frontiers.fit.REFIT_EVALUATIONS", 4)  # of two, none may lead downhill
    monkeypatch.setattr("kareus.evidence.frontiers.fit.SAMPLES", 2)
    drawn = [gpu.coefficients for gpu in bootstrap(rows, subjects, few)]
    assert len({c.clock_power_w for c in drawn}) == 2
    assert all(c.clock_power_w == pytest.approx(few.gpu.coefficients.clock_power_w, rel=0.2) for c in drawn)
    monkeypatch.setattr("kareus.evidence.frontiers.fit.SAMPLES", 1)
    assert [gpu.coefficients for gpu in bootstrap(rows, subjects, few)] == drawn[:1]


def test_writing_a_fit_changes_nothing_else_in_the_file(fit):
    text = (CONFIG / "gpu/a100-sxm4-40gb.yaml").read_text()
    known = {
        "time_percent": 7.5,
        "energy_percent": 3.0,
        "time_interval_percent": 1.5,
        "energy_interval_percent": 1.0,
        "estimated_for": "version-1-0123456789abcdef",
    }
    written = documented(text, fit, Uncertainty(**known), with_tables=False)
    before, after = yaml.safe_load(text), yaml.safe_load(written)
    assert after.pop("uncertainty") == known
    before.pop("uncertainty")
    coefficients = after.pop("coefficients")
    for name, value in before.pop("coefficients").items():
        expected = getattr(fit.gpu.coefficients, name) if name in TO_FRONTIERS else value
        assert coefficients[name] == pytest.approx(expected, rel=1e-3)
    assert after == before
    assert written.count("[fit to planned frontiers]") == len(TO_FRONTIERS.keys() - set(OF_SOFTWARE))
