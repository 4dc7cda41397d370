"""Measuring the trials of a calibration: until the time is spent, and nothing twice."""

import pytest
from helpers.builders import a100
from helpers.calibrations import PROTOCOL, hidden_testbed, shelves

from kareus.calibrate.coefficients import expectations
from kareus.calibrate.design import clocks_of, ordered_trials
from kareus.calibrate.measure import measure_trials
from kareus.calibrate.probes import ProbeKind, probes

CHOSEN = [probe for probe in probes(8) if probe.kind in (ProbeKind.MEMORY, ProbeKind.LAUNCHES)]


@pytest.fixture(scope="module")
def trials():
    gpu = a100()
    return ordered_trials(CHOSEN, clocks_of(gpu, settable=True), gpu, expectations(gpu), PROTOCOL, 90.0)


class CountingTestbed:
    """A testbed that counts its sessions, and is killed at one of them."""

    def __init__(self, killed_at=None):
        self.testbed, self.sessions, self.killed_at = hidden_testbed(a100()), 0, killed_at

    def session(self, program, measurement):
        self.sessions += 1
        if self.sessions == self.killed_at:
            raise KeyboardInterrupt
        return self.testbed.session(program, measurement)


def test_no_further_trial_begins_once_the_time_is_spent(trials):
    measured = measure_trials(hidden_testbed(a100()), PROTOCOL, shelves(), trials, 60.0)
    assert 0 < len(measured.observations) < len(trials)
    assert 60 <= measured.spent_s < 65


def test_a_killed_calibration_continues_and_ends_the_same(trials):
    kept, first = shelves(), CountingTestbed(killed_at=8)
    with pytest.raises(KeyboardInterrupt):
        measure_trials(first, PROTOCOL, kept, trials, 60.0)
    second = CountingTestbed()
    continued = measure_trials(second, PROTOCOL, kept, trials, 60.0)
    whole = measure_trials(hidden_testbed(a100()), PROTOCOL, shelves(), trials, 60.0)
    assert continued.observations == whole.observations
    assert continued.reused == 6  # one of the seven sessions read heat
    assert second.sessions == len(whole.observations) - 6


def test_a_calibration_that_is_done_measures_nothing(trials):
    kept, again = shelves(), CountingTestbed(killed_at=1)
    first = measure_trials(hidden_testbed(a100()), PROTOCOL, kept, trials, 60.0)
    second = measure_trials(again, PROTOCOL, kept, trials, 60.0)
    assert second.observations == first.observations
    assert second.spent_s == first.spent_s
