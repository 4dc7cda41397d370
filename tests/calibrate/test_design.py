"""Choosing what to measure: the beginning of a longer calibration, nothing twice, only clocks that can be set."""

from helpers.builders import a100
from helpers.calibrations import PROTOCOL

from kareus.calibrate.coefficients import expectations
from kareus.calibrate.design import clocks_of, ordered_trials, seconds_of
from kareus.calibrate.probes import ProbeKind, probes

MEMORY = [probe for probe in probes(8) if probe.kind is ProbeKind.MEMORY]


def trials(budget_s, clocks_mhz=(1410, 900)):
    gpu = a100()
    return ordered_trials(MEMORY, clocks_mhz, gpu, expectations(gpu), PROTOCOL, budget_s)


def test_a_shorter_calibration_is_the_beginning_of_a_longer_one():
    short, long = trials(20.0), trials(60.0)
    assert short == long[: len(short)]
    assert len(short) < len(long)


def test_no_trial_is_made_twice():
    every = trials(1000.0)
    assert len(every) == len(set(every))
    assert sum(own.with_energy for own in every) == 2 * len(MEMORY)


def test_trials_fill_the_time():
    assert 60 <= sum(seconds_of(own, PROTOCOL) for own in trials(60.0)) < 65


def test_only_the_maximum_clock_is_measured_where_none_can_be_set():
    assert clocks_of(a100(), settable=False) == (1410,)
    settable = clocks_of(a100(), settable=True)
    assert settable[0] == 1410
    assert settable[-1] == 900
    assert set(settable) <= set(a100().search_frequencies.clocks_mhz)
