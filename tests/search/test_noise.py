"""The noise that repeats tell, and what a search does with it."""

import numpy as np
import pytest
from helpers.builders import a100, informed_search
from hypothesis import given, settings
from hypothesis import strategies as st
from test_informed import STATIC_W, Truth, problem

from kareus.search.dataset import Dataset
from kareus.search.noise import Noise, noise_of
from kareus.search.rounds import run_search

CONFIGURED = 0.005
TIMED, MEASURED, REPEATED = np.arange(40), np.arange(60)[::-3], np.array([59, 2, 29, 47])


def data(time_noise, power_noise, seed=0):
    """Times alone of 40 candidates, 20 measured whole of which 13 are among them, and four measured whole once more."""
    random = np.random.default_rng(seed)

    def noisy(of, noise):
        return of * np.exp(noise * random.standard_normal(len(of)))

    time_s = 1e-3 * (1 + np.arange(60))
    times_s, again_s = noisy(time_s[MEASURED], time_noise), noisy(time_s[REPEATED], time_noise)
    return Dataset(
        MEASURED,
        times_s,
        times_s * noisy(np.full(20, 300.0), power_noise),
        STATIC_W,
        TIMED,
        noisy(time_s[TIMED], time_noise),
        REPEATED,
        again_s,
        again_s * noisy(np.full(4, 300.0), power_noise),
    )


def test_nothing_measured_twice_leaves_the_configured_noise():
    nothing = np.zeros(0)
    assert noise_of(Dataset(nothing.astype(int), nothing, nothing, STATIC_W), CONFIGURED) == (CONFIGURED,) * 2


def test_the_scatter_of_two_measurements_is_twice_the_variance_of_one():
    """One candidate, measured twice: times 4 % apart, powers 6 %."""
    once, twice = np.ones(1), np.array([1.04])
    data = Dataset(np.array([7]), once, once, STATIC_W, repeated=np.array([7]), repeated_time_s=twice,
                   repeated_energy_j=twice * 1.06)  # fmt: skip
    assert noise_of(data, CONFIGURED) == pytest.approx((np.log(1.04) / 2**0.5, np.log(1.06) / 2**0.5))


@settings(max_examples=30)
@given(time_noise=st.sampled_from([0.02, 0.03, 0.05]), power_noise=st.sampled_from([0.03, 0.1]))
def test_noise_is_found_over_many_draws(time_noise, power_noise):
    drawn = [noise_of(data(time_noise, power_noise, seed), CONFIGURED) for seed in range(100)]
    times, powers = np.array(drawn).T
    assert np.sqrt(np.mean(times**2)) == pytest.approx(time_noise, rel=0.1)
    assert np.sqrt(np.mean(powers**2)) == pytest.approx(power_noise, rel=0.2)


def test_the_configured_noise_stands_while_repeats_do_not_contradict_it():
    drawn = [noise_of(data(CONFIGURED, CONFIGURED, seed), CONFIGURED) for seed in range(200)]
    assert 0 < np.mean([noise != (CONFIGURED, CONFIGURED) for noise in drawn]) < 0.05
    assert min(min(noise) for noise in drawn) == CONFIGURED


@pytest.mark.parametrize("quieter", [0.001, 0.0])
def test_a_quieter_testbed_is_not_believed(quieter):
    assert noise_of(data(quieter, quieter), CONFIGURED) == Noise(CONFIGURED, CONFIGURED)


def test_the_first_whole_measurements_are_repeated_and_no_others():
    found = run_search(problem(), Truth(a100()).measure, Truth(a100()).measure_time, STATIC_W)
    initial = [t for t in found.trials if t.chosen_by == ("initial",)]
    assert [(t.candidate, t.round) for t in found.repeats] == [(t.candidate, t.round) for t in initial]
    assert len(initial) == informed_search().initial
    assert all(a.measurement != b.measurement for a, b in zip(found.repeats, initial, strict=True))


def test_a_noisy_testbed_is_searched_with_its_noise():
    truth = Truth(a100(), noise=0.02)
    last = run_search(problem(), truth.measure, truth.measure_time, STATIC_W).rounds[-1]
    assert last.noise.time == pytest.approx(0.02, rel=0.4)
    assert last.noise.power == pytest.approx(0.02, rel=0.7)


def test_a_search_that_its_budget_ends_says_what_that_may_cost():
    truth = Truth(a100())
    found = run_search(problem(most=6), truth.measure, truth.measure_time, STATIC_W)
    stop = found.rounds[-1].stop
    assert stop.is_cut_short
    missing = 1 - truth.share([t.candidate for t in found.trials])
    assert 0 < stop.remaining < 1
    assert missing < 3 * stop.remaining
