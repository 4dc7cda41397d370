from functools import cache

import numpy as np
import pytest
from helpers.builders import a100, graphs, protocol, search, simulated, space

from kareus.gpu_model.model import run_program
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch
from kareus.pareto import hypervolume, pareto_front
from kareus.profile.measure import Measurement, measure_once
from kareus.profile.programs import partition_program
from kareus.schedule.space import search_space
from kareus.search.features import features_of
from kareus.search.prior import textbook
from kareus.search.problem import SearchProblem
from kareus.search.rounds import run_search
from kareus.testbed.protocol import open_testbed

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
CANDIDATES = search_space(PARTITION, a100(), space())
FEATURES = features_of(PARTITION, CANDIDATES)
STATIC_W = a100().static_power_w


def problem(strategy="paper", seed=0, **changes):
    config = search(strategy, **changes)
    return SearchProblem(PARTITION, FEATURES, textbook(a100()), config, np.random.default_rng(seed))


@cache
def truth(candidate):
    schedule = CANDIDATES[candidate]
    behaviour = run_program(
        a100(), partition_program(PARTITION, schedule.sm_count, schedule.launch), schedule.frequency_mhz
    )
    return Measurement(time_s=float(behaviour.time_s), energy_j=float(behaviour.energy_j), duration_s=13.0)


def no_times(candidate):
    raise AssertionError("only informed measures times alone")


@cache  # its noise is that of the candidate
def noisy(candidate):
    testbed = open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0)
    schedule = CANDIDATES[candidate]
    program = partition_program(PARTITION, schedule.sm_count, schedule.launch)
    with testbed.session(program, str(candidate)) as session:
        row = measure_once(session, schedule.frequency_mhz, protocol())
    return Measurement(time_s=row["time_s"], energy_j=row["energy_j"], duration_s=row["duration_s"])


def true_dynamic(candidates):
    costs = [truth(c) for c in candidates]
    return np.array([(c.time_s, c.energy_j - STATIC_W * c.time_s) for c in costs])


def share_of_exhaustive(candidates):
    """Share of the exhaustive hypervolume: noise-free points, both axes scaled to [ideal, reference]."""
    everything = true_dynamic(range(len(CANDIDATES)))
    front = pareto_front(everything)
    ideal, reference = front.min(axis=0), 1.1 * front.max(axis=0)
    scaled = [(p - ideal) / (reference - ideal) for p in (true_dynamic(candidates), everything)]
    return hypervolume(scaled[0], np.ones(2)) / hypervolume(scaled[1], np.ones(2))


def test_the_budget_and_the_rounds_are_those_of_the_paper():
    found = run_search(problem(stopping_improvement=0.0), truth, no_times, STATIC_W)
    assert [r.measured for r in found.rounds] == [96, 128, 160, 192, 224]
    assert (found.rounds[-1].stop.why, found.rounds[-1].stop.is_cut_short) == ("budget spent", True)
    assert {t.chosen_by for t in found.trials if t.round == 0} == {("initial",)}
    passes = [t.chosen_by for t in found.trials if t.round > 0]
    assert {name for names in passes for name in names} == {"total", "dynamic", "static", "uncertainty"}
    assert max(map(len, passes)) > 1


def test_a_candidate_is_never_measured_twice():
    found = run_search(problem(), truth, no_times, STATIC_W)
    assert len({t.candidate for t in found.trials}) == len(found.trials)


def test_the_search_ends_when_the_hypervolume_stands_still():
    found = run_search(problem(stopping_improvement=0.5), truth, no_times, STATIC_W)
    assert [r.measured for r in found.rounds] == [96, 128, 160]
    assert "hypervolume grew" in found.rounds[-1].stop.why
    assert found.rounds[0].stop is found.rounds[1].stop is None


def test_paper_finds_nearly_all_of_the_frontier_despite_noise():
    shares = [
        share_of_exhaustive([t.candidate for t in run_search(problem(seed=seed), noisy, no_times, STATIC_W).trials])
        for seed in range(3)
    ]
    assert np.median(shares) > 0.97


def test_paper_beats_random_at_equal_budget():
    def median_share(strategy, **changes):
        runs = [run_search(problem(strategy, seed, **changes), noisy, no_times, STATIC_W) for seed in range(3)]
        return np.median([share_of_exhaustive([t.candidate for t in run.trials]) for run in runs])

    assert median_share("paper", stopping_improvement=0.0) > median_share("random")


def test_exhaustive_measures_everything_once():
    found = run_search(problem("exhaustive"), truth, no_times, STATIC_W)
    assert sorted(t.candidate for t in found.trials) == list(range(len(CANDIDATES)))
    assert [(r.stop.why, r.stop.is_cut_short) for r in found.rounds] == [("budget spent", False)]


@pytest.mark.parametrize("strategy", ["paper", "random"])
def test_the_same_seed_searches_the_same_way(strategy):
    assert (
        run_search(problem(strategy, 5), truth, no_times, STATIC_W).trials
        == run_search(problem(strategy, 5), truth, no_times, STATIC_W).trials
    )


def test_predictions_are_made_before_measuring_and_come_close():
    found = run_search(problem(stopping_improvement=0.0), noisy, no_times, STATIC_W)
    predicted = [t for t in found.trials if t.predicted_time_s is not None]
    assert {t.round for t in predicted} == {1, 2, 3, 4}
    errors = [abs(t.predicted_time_s / t.measurement.time_s - 1) for t in predicted]
    assert 0 < np.median(errors) < 0.05


def test_rounds_report_the_time_spent_on_the_testbed():
    found = run_search(problem(), truth, no_times, STATIC_W)
    assert found.rounds[0].measuring_s == pytest.approx(96 * 13.0)
