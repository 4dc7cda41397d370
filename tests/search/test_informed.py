"""Strategy `informed`, on truths that its prior does not know."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.builders import a100, graphs, informed_search, space
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.evidence.frontiers.fit import TO_FRONTIERS, TO_TABLES
from kareus.gpu_model.coefficients import COEFFICIENTS, NO_SCHEDULE
from kareus.gpu_model.model import run_schedules
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.pareto import hypervolume, pareto_front
from kareus.profile.measure import Measurement, TimeMeasurement
from kareus.schedule.space import search_space
from kareus.search.dataset import Dataset
from kareus.search.features import Features, features_of
from kareus.search.informed import _uncertain
from kareus.search.noise import Noise
from kareus.search.posterior import GaussianPrior
from kareus.search.prior import SPREADS, sample_prior, textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import run_search

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
FEATURES = features_of(PARTITION, search_space(PARTITION, a100(), space()))
STATIC_W = a100().static_power_w


def problem(seed=0, prior=None, features=FEATURES, **changes):
    config = informed_search(**changes)
    return SearchProblem(PARTITION, features, prior or textbook(a100()), config, np.random.default_rng(seed))


def scaled(gpu, factors):
    """The GPU with coefficients multiplied, shares kept at most 1."""
    values = {
        name: min(getattr(gpu.coefficients, name) * factor, 1.0 if "share" in name or "efficiency" in name else np.inf)
        for name, factor in factors.items()
    }
    values["voltage_floor"] = min(values["voltage_floor"], 1.0)
    return dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **values))


def perturbed(seed):
    """An A100 whose coefficients are off by up to 30 %."""
    factors = np.random.default_rng(seed).uniform(0.7, 1.3, len(SPREADS))
    return scaled(a100(), dict(zip(SPREADS, factors.tolist(), strict=True)))


class Truth:
    """Noise-free costs of every candidate, measured with the noise of the simulated testbed."""

    def __init__(self, gpu, features=FEATURES, noise=0.004):
        behaviour = run_schedules(gpu, PARTITION, *features.matrix.T)
        self.time_s, self.energy_j, self.noise = behaviour.time_s, behaviour.energy_j, noise
        self.points = np.column_stack((self.time_s, self.energy_j - STATIC_W * self.time_s))

    def measure(self, candidate, repeat=0):
        random = np.random.default_rng((candidate, 2 * repeat) if repeat else candidate)
        time_factor, power_factor = 1 + self.noise * random.standard_normal(2)
        time_s = float(self.time_s[candidate]) * time_factor
        energy_j = float(self.energy_j[candidate]) * time_factor * power_factor
        return Measurement(time_s=time_s, energy_j=energy_j, duration_s=11.4)

    def measure_time(self, candidate):
        time_factor = 1 + self.noise * np.random.default_rng((candidate, 1)).standard_normal()
        return TimeMeasurement(time_s=float(self.time_s[candidate]) * time_factor, duration_s=1.0)

    def share(self, candidates):
        front = pareto_front(self.points)
        ideal, reference = front.min(axis=0), 1.1 * front.max(axis=0)
        axes = (self.points - ideal) / (reference - ideal)
        return hypervolume(axes[candidates], np.ones(2)) / hypervolume(axes, np.ones(2))


def searched(truth, **options):
    found = run_search(problem(**options), truth.measure, truth.measure_time, STATIC_W)
    return found, [t.candidate for t in found.trials]


def test_the_prior_is_not_what_the_simulated_testbed_runs():
    """A model that is the prior must never be the truth that is searched."""
    prior, truth = textbook(a100()).coefficients, a100().coefficients
    assert [name for name in SPREADS if getattr(prior, name) == getattr(truth, name)] == []


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_no_coefficient_of_a_gpus_file_passes_into_the_prior(name):
    """Whichever there are: one that is added to the model is tried as well."""
    gpu = a100()
    value = getattr(gpu.coefficients, name)
    factor = 0.9 if 0.9 * value >= COEFFICIENTS[name].least else 1.1
    changed = dataclasses.replace(gpu.coefficients, **{name: value * factor})
    assert textbook(dataclasses.replace(gpu, coefficients=changed)) == textbook(gpu)


@pytest.mark.parametrize("name", sorted({**TO_FRONTIERS, **TO_TABLES}))
def test_no_fitted_coefficient_is_the_prior_s(name):
    assert getattr(textbook(a100()).coefficients, name) != getattr(a100().coefficients, name)


def test_schedules_do_not_depend_on_what_is_said_to_leave_them():
    prior = textbook(a100())
    changed = {name: 0.7 for name, known in COEFFICIENTS.items() if known.prior.origin == NO_SCHEDULE}
    assert "isolation_overhead" in changed
    other = dataclasses.replace(prior, coefficients=dataclasses.replace(prior.coefficients, **changed))
    assert np.array_equal(
        run_schedules(other, PARTITION, *FEATURES.matrix.T).energy_j,
        run_schedules(prior, PARTITION, *FEATURES.matrix.T).energy_j,
    )


def test_the_prior_is_the_same_for_every_gpu():
    other = scaled(a100(), dict.fromkeys(SPREADS, 0.9))
    assert textbook(other).coefficients == textbook(a100()).coefficients


@pytest.mark.parametrize("truth", [a100(), perturbed(1), perturbed(2)], ids=["a100", "perturbed-1", "perturbed-2"])
def test_few_measurements_find_nearly_all_of_the_frontier(truth):
    found, candidates = searched(Truth(truth))
    assert Truth(truth).share(candidates) > 0.99
    assert len(candidates) <= informed_search().most < len(FEATURES) / 10
    assert {t.chosen_by for t in found.trials} == {("initial",), ("improvement",)}


def test_it_beats_random_at_equal_budget():
    truth = Truth(perturbed(3))
    shares = []
    for seed in range(3):
        _, candidates = searched(truth, seed=seed, most=24)
        drawn = np.random.default_rng(seed).choice(len(FEATURES), size=len(candidates), replace=False)
        shares.append((truth.share(candidates), truth.share(drawn)))
    informed, random = np.median(shares, axis=0)
    assert 1 - informed < (1 - random) / 2


def test_candidates_are_measured_once_and_seeds_repeat():
    first, candidates = searched(Truth(a100()), seed=4, most=20)
    assert len(set(candidates)) == len(candidates)
    assert searched(Truth(a100()), seed=4, most=20)[0].trials == first.trials


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_prior_that_is_nonsense_is_overcome(factor):
    nonsense = scaled(textbook(a100()), dict.fromkeys(SPREADS, factor))
    truth = Truth(a100())
    _, candidates = searched(truth, prior=nonsense, most=40, most_looks=80)
    assert truth.share(candidates) > 0.95


def test_an_inverted_prior_is_overcome():
    """SM counts and clocks in reverse: the prior expects the best where the worst is."""
    truth = Truth(a100())
    clocks, sms, launches = FEATURES.matrix.T
    flipped = Features(np.column_stack((clocks.min() + clocks.max() - clocks, sms.min() + sms.max() - sms, launches)))
    runs = [searched(truth, features=flipped, seed=seed, most=40, most_looks=80) for seed in range(3)]
    shares = [truth.share(candidates) for _, candidates in runs]
    assert np.median(shares) > 0.95
    assert min(shares) > 0.9


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_search_of_very_few_candidates_ends(size):
    features = Features(FEATURES.matrix[:size])
    found, candidates = searched(Truth(a100(), features), features=features)
    assert len(set(candidates)) == len(candidates) <= size
    assert found.rounds[-1].stop


def test_constant_measurements_end_the_search():
    found = run_search(
        problem(most=12, most_looks=20),
        lambda *_: Measurement(time_s=1e-3, energy_j=0.3, duration_s=11.4),
        lambda _: TimeMeasurement(time_s=1e-3, duration_s=1.0),
        STATIC_W,
    )
    assert found.rounds[-1].stop


def test_a_search_ends_once_little_is_predicted_to_be_left():
    found, candidates = searched(Truth(a100()), enough=0.2)
    assert len(candidates) < informed_search().most
    assert "best are predicted to add" in found.rounds[-1].stop.why
    assert not found.rounds[-1].stop.is_cut_short


def test_a_search_goes_on_while_its_predictions_are_wrong():
    """However little it expects: a posterior whose latest predictions were wrong does not know what is left."""
    found, candidates = searched(Truth(a100()), enough=0.5, surprise=1e-6, most=16, most_looks=40)
    assert len(candidates) == 16
    stop = found.rounds[-1].stop
    assert stop.is_cut_short
    assert stop.why == f"budget spent; the rest is predicted to add {stop.remaining:.2%} of the hypervolume"


def test_a_candidate_is_timed_once_which_is_no_measurement():
    found, candidates = searched(Truth(a100()))
    timed = [t.candidate for t in found.time_trials]
    assert len(set(timed)) == len(timed) == found.rounds[-1].timed > 0
    assert set(timed) - set(candidates)
    assert found.rounds[-1].measured == len(found.dataset(STATIC_W).time_s) == len(candidates)
    assert sum(r.timing_s for r in found.rounds) == pytest.approx(len(timed) * 1.0)
    assert sum(r.measuring_s for r in found.rounds) == pytest.approx(len(timed) * 1.0 + (len(candidates) + 4) * 11.4)


@pytest.mark.parametrize("noise", [0.005, 0.02])
def test_times_are_measured_alone_while_they_deviate_by_half_the_noise(noise):
    """Neither more certain ones, which a measurement teaches nothing, nor only those of large uncertainty."""
    deviations = noise * np.array([0.2, 0.45, 0.55, 0.9, 3.0, 40.0])
    posterior = SimpleNamespace(time_deviation=deviations)
    plausible, nothing = np.arange(6), np.zeros(0, dtype=int)
    timed = Dataset(nothing, nothing, nothing, STATIC_W, np.array([3]), np.ones(1))
    worth = _uncertain(posterior, plausible, timed, informed_search(), Noise(noise, 1.0))
    assert worth.tolist() == [False, False, True, False, True, True]


def test_the_first_measurements_span_the_clocks():
    found, _ = searched(Truth(a100()), most=8)
    clocks = sorted(FEATURES.frequency_mhz[t.candidate] for t in found.trials if t.chosen_by == ("initial",))
    assert (clocks[0], clocks[-1]) == (FEATURES.frequency_mhz.min(), FEATURES.frequency_mhz.max())


def test_a_time_teaches_less_of_a_candidates_power():
    prior = GaussianPrior(FEATURES, ENSEMBLE)
    truth, nothing = Truth(a100(), noise=0.0), np.zeros(0, dtype=int)
    timed = np.array([100, 300])
    data = Dataset(nothing, np.zeros(0), np.zeros(0), STATIC_W, timed, truth.time_s[timed])
    after = prior.condition(data, Noise(0.005, 0.005))
    assert np.exp(after.mean[timed]) == pytest.approx(truth.time_s[timed], rel=0.01)
    assert (after.time_deviation[timed] <= 0.005 * 1.01).all()
    assert (after.deviation[len(FEATURES) + timed] > 0.1).all()


ENSEMBLE = sample_prior(textbook(a100()), PARTITION, FEATURES, 30, np.random.default_rng(0))


@settings(max_examples=15)
@given(
    measured=st.lists(st.integers(0, len(FEATURES) - 1), min_size=1, max_size=12, unique=True),
    factor=st.floats(0.2, 5.0),
)
def test_measuring_never_makes_a_cost_less_certain(measured, factor):
    prior = GaussianPrior(FEATURES, ENSEMBLE)
    truth = Truth(a100(), noise=0.0)
    data = Dataset(np.array(measured), truth.time_s[measured] * factor, truth.energy_j[measured] * factor, STATIC_W)
    after = prior.condition(data, Noise(0.005, 0.005))
    rows = np.concatenate((data.candidates, len(FEATURES) + data.candidates))
    before = np.diag(prior.covariance(data.candidates, after.scales))
    assert (after.deviation[rows] ** 2 <= before + 1e-9).all()
    assert (after.deviation[rows] <= 0.005 * 1.01).all()
    assert np.exp(after.mean[data.candidates]) == pytest.approx(data.time_s, rel=0.1)
