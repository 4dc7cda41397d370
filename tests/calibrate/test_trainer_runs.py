"""Calibrating a trainer: which runs are chosen, what they leave of its numbers, and what the answer may say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.calibrate.number_fit import ERROR_SCALE, fit_numbers
from kareus.calibrate.trainer import calibrate_trainer, fit_runs, most_telling, telling_runs
from kareus.errors import ConfigError
from kareus.gpu_model.declarations import FitData, FitPrior

PRIORS = {
    "rate": FitPrior(FitData.ITERATIONS, 1.0, 0.1, 10.0, 1.0),
    "wait": FitPrior(FitData.ITERATIONS, 1.0, 0.01, 100.0, 2.0),
    "idle": FitPrior(FitData.ITERATIONS, 0.5, 0.02, 1.0, 0.5),
}
HIDDEN = {"rate": 1.6, "wait": 4.0, "idle": 0.3}
WORK = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 8.0, 8.0, 1.0, 1.0, 0.5])
MESSAGES = np.array([0.0, 0.0, 0.0, 0.0, 0.1, 1.0, 3.0, 2.0, 5.0, 0.0])
ENDS = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


def times(values, runs):
    """A trainer of three terms: products, messages, and an end that one run alone shows."""
    chosen = list(runs)
    own = values["rate"] * WORK + values["wait"] * MESSAGES + values["idle"] * ENDS
    return own[chosen]


def measured(run):
    return float(times(HIDDEN, [run])[0])


def straight(slopes, names=("rate", "wait")):
    """Times that are powers of the numbers, so that their logarithms are linear."""

    def of(values, runs):
        return np.exp(slopes[list(runs)] @ np.log([values[name] for name in names]))

    return of


def test_few_chosen_runs_find_hidden_numbers() -> None:
    found = calibrate_trainer(PRIORS, times, len(WORK), measured, 5)
    assert found.posterior.values == pytest.approx(HIDDEN, rel=0.1)
    assert len(set(found.chosen)) == 5
    assert 9 in found.chosen  # no other run shows the end
    assert np.abs(found.inside).max() < 0.02


def test_chosen_runs_tell_more_than_the_first_ones() -> None:
    chosen = calibrate_trainer(PRIORS, times, len(WORK), measured, 4)
    first = fit_runs(PRIORS, times, range(4), [measured(run) for run in range(4)])
    assert np.linalg.det(chosen.posterior.covariance) < np.linalg.det(first.posterior.covariance)


def test_a_run_that_failed_is_not_chosen_again_and_counts_for_nothing() -> None:
    found = calibrate_trainer(PRIORS, times, len(WORK), lambda run: None if run == 9 else measured(run), 20)
    assert sorted(found.chosen) == list(range(9))
    assert found.posterior.note("idle").endswith("no run tells it")


def test_too_few_runs_are_refused() -> None:
    for runs, said in ((0, "0 measured runs: "), (1, "1 measured run: "), (2, "2 measured runs: ")):
        with pytest.raises(ConfigError, match=said):
            calibrate_trainer(PRIORS, times, runs, measured, 5)


def test_a_number_at_a_bound_says_so() -> None:
    runs = range(len(WORK))
    found = fit_runs(PRIORS, times, runs, times({**HIDDEN, "rate": 30.0}, runs))
    assert "at the bound" in found.posterior.note("rate")
    assert "bound" not in fit_runs(PRIORS, times, runs, times(HIDDEN, runs)).posterior.note("rate")


def test_intervals_stay_within_bounds_and_hold_the_number() -> None:
    found = calibrate_trainer(PRIORS, times, len(WORK), measured, 6).posterior
    for name, (low, high) in found.intervals.items():
        assert PRIORS[name].lower <= low <= found.values[name] <= high <= PRIORS[name].upper * (1 + 1e-12)


def test_the_posterior_of_a_straight_law_is_that_of_linear_regression() -> None:
    """By hand: precision of the prior and of errors of 5 %, which small errors do not soften."""
    slopes = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.2, 0.8]])
    priors = {name: PRIORS[name] for name in ("rate", "wait")}
    seen = np.array([0.01, 0.0, -0.01, 0.005])

    def errors(values):
        return slopes @ np.log(list(values.values())) - seen

    found = fit_numbers(priors, errors, {"rate": 1.0, "wait": 1.0}, 20)
    precision = slopes.T @ slopes / ERROR_SCALE**2 + np.diag([1.0, 0.25])
    expected = np.linalg.solve(precision, slopes.T @ seen / ERROR_SCALE**2)
    assert found.logarithms == pytest.approx(expected, abs=1e-4)
    assert found.covariance == pytest.approx(np.linalg.inv(precision), rel=0.15)  # slopes of softened errors


def test_runs_left_out_are_predicted_as_by_a_fit_to_the_others() -> None:
    rng = np.random.default_rng(3)
    slopes = rng.uniform(0, 1, (9, 2))
    law = straight(slopes)
    priors = {name: PRIORS[name] for name in ("rate", "wait")}
    seen_s = law({"rate": 1.5, "wait": 2.0}, range(9)) * np.exp(rng.normal(0, 0.01, 9))
    found = fit_runs(priors, law, range(9), seen_s)
    for run in range(9):
        others = [one for one in range(9) if one != run]
        refit = fit_runs(priors, law, others, seen_s[others]).posterior.values
        expected = float(np.log(law(refit, [run])[0] / seen_s[run]))
        assert found.left_out[run] == pytest.approx(expected, abs=2e-3)
        assert abs(found.left_out[run]) >= abs(found.inside[run]) - 2e-3


@given(st.integers(0, 10_000), st.integers(2, 8), st.integers(1, 4))
def test_the_most_telling_run_leaves_the_least_uncertainty(seed: int, runs: int, numbers: int) -> None:
    """By trying all: the posterior after each run, and the variance of all predictions under it."""
    rng = np.random.default_rng(seed)
    slopes, root = rng.normal(size=(runs, numbers)), rng.normal(size=(numbers, numbers))
    covariance = root @ root.T + 0.1 * np.eye(numbers)

    def left(run):
        precision = np.linalg.inv(covariance) + np.outer(slopes[run], slopes[run]) / ERROR_SCALE**2
        return np.trace(slopes @ np.linalg.inv(precision) @ slopes.T)

    chosen = most_telling(slopes, covariance, range(runs))
    assert left(chosen) == pytest.approx(min(left(run) for run in range(runs)), rel=1e-6)


def test_runs_to_measure_first_do_not_tell_the_same_twice() -> None:
    slopes = np.array([[1.0, 0.0], [1.0, 0.0], [0.99, 0.0], [0.0, 0.6]])
    assert set(telling_runs(slopes, np.eye(2), 2)) & {3}
    assert sorted(telling_runs(slopes, np.eye(2), 9)) == [0, 1, 2, 3]
    assert telling_runs(slopes, np.eye(2), 2, first=[2]) == [2, 3]
    assert telling_runs(slopes, np.eye(2), 3, first=[2], last=[3, 0]) == [2, 1, 3], "which tells more of what is left"


@pytest.mark.parametrize(("runs", "noise", "doubt"), [(10, 0.001, None), (9, 0.001, "fewer than 10"), (10, 1.0, "tau")])
def test_layouts_are_ranked_by_enough_runs_that_are_predicted_in_order(runs, noise, doubt) -> None:
    rng = np.random.default_rng(0)
    seen_s = times(HIDDEN, range(runs)) * np.exp(rng.normal(0, noise, runs))
    found = fit_runs(PRIORS, times, range(runs), seen_s)
    assert (not found.doubts) == (doubt is None)
    assert doubt is None or any(doubt in one for one in found.doubts)
