"""The state of a run, and the estimate of its time left, after events at chosen times."""

import pytest

from kareus.progress.events import Failed, Finished, Interrupted, JobsPlanned, NothingToDo, Started
from kareus.progress.journal import Journal, Standing
from kareus.progress.run_state import RunState, TimeLeft


def started(job, at_s, rule="search", logs=()):
    return Started(at_s=at_s, job=job, rule=rule, what=f"Doing {job}", logs=tuple(logs))


def run(*events, **jobs):
    state = RunState(began_s=0.0)
    for event in (JobsPlanned(jobs=jobs), *events):
        state.apply(event)
    return state


def test_no_estimate_before_a_job_of_the_rule_has_finished():
    state = run(started(1, 10.0), search=3, report=1)
    assert state.time_left(20.0) == TimeLeft(0.0, untimed=4)


def test_jobs_one_after_another_take_their_mean_each():
    state = run(started(1, 0.0), Finished(at_s=10.0, job=1), started(2, 10.0), Finished(at_s=30.0, job=2), search=5)
    assert state.time_left(30.0).known_s == pytest.approx(3 * 15.0)


def test_jobs_that_run_two_at_once_are_done_in_half_the_time():
    events = [event for job in (1, 2) for event in (started(job, 0.0), Finished(at_s=10.0, job=job))]
    assert run(*events, search=6).time_left(10.0).known_s == pytest.approx(4 * 10.0 / 2)


def test_what_a_running_job_has_done_is_not_expected_again():
    state = run(started(1, 0.0), Finished(at_s=10.0, job=1), started(2, 10.0), search=2)
    assert state.time_left(14.0).known_s == pytest.approx(6.0)
    assert state.time_left(99.0).known_s == 0.0  # it takes longer than expected; nobody knows how much


def test_untimed_rules_are_counted_except_the_collecting_one():
    state = run(started(1, 0.0), Finished(at_s=10.0, job=1), search=1, report=2, all=1)
    assert state.time_left(10.0) == TimeLeft(0.0, untimed=2)


def test_a_first_job_that_says_how_far_it_is_is_projected(tmp_path):
    path = tmp_path / "a.progress.json"
    Journal(path, Standing(budget=40, space=900, measured=10))
    state = run(started(1, 0.0, logs=[tmp_path / "a.log", path]), search=1)
    assert state.time_left(60.0) == TimeLeft(pytest.approx(180.0), untimed=0)


def test_a_search_under_way_is_not_projected_since_it_may_end(tmp_path):
    path = tmp_path / "a.progress.json"
    Journal(path, Standing(budget=40, space=900, measured=10, round=3))
    state = run(started(1, 0.0, logs=[path]), search=1)
    assert state.time_left(60.0) == TimeLeft(0.0, untimed=1)


def test_earlier_runs_tell_what_a_rule_usually_takes():
    state = run(started(1, 0.0), search=2, report=1)
    state.usual_s = {"search": 10.0, "report": 4.0}
    assert state.time_left(6.0) == TimeLeft(pytest.approx(4.0 + 10.0 + 4.0), untimed=0)


def test_what_is_usual_is_scaled_by_the_pace_of_this_run():
    state = run(started(1, 0.0), Finished(at_s=20.0, job=1), search=1, report=1)
    state.usual_s = {"search": 10.0, "report": 4.0}
    assert state.time_left(20.0).known_s == pytest.approx(8.0)
    state.usual_s = {"search": 1.0, "report": 4.0}
    assert state.time_left(20.0).known_s == pytest.approx(16.0)  # at most four times


def test_jobs_that_end_after_an_interruption_have_not_failed():
    state = run(started(1, 0.0), Interrupted(), Failed(at_s=5.0, job=1, rule="search"), search=1)
    assert (state.failed, state.has_begun, state.has_succeeded) == ({}, True, False)


def test_a_run_with_nothing_to_do_has_succeeded():
    assert run(NothingToDo()).has_succeeded
    assert not run(search=1).has_succeeded


def test_a_failed_job_is_not_waited_for_until_restarted():
    state = run(started(1, 0.0), Failed(at_s=5.0, job=1, rule="search"), search=1)
    assert (state.done, len(state.failed), state.waiting()["search"]) == (0, 1, 0)
    state.apply(started(1, 6.0))
    state.apply(Finished(at_s=9.0, job=1))
    assert (state.done, len(state.failed), state.running) == (1, 0, {})
    assert state.durations_s == {"search": [3.0]}
