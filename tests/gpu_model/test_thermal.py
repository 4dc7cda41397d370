"""Chips that stay warm: what work costs at the temperature that it settles to, and temperatures of windows and sums."""

import dataclasses

import pytest
from helpers.builders import a100
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.gpu_model.thermal import (
    BusyTime,
    Interval,
    mean_temperature_c,
    repeated_work,
    window_temperature_c,
)

A100 = a100().coefficients
AMBIENT_C = 25.0
PARTS = [BusyTime(2.0, 700.0, 40.0), BusyTime(1.0, 250.0, 45.0)]
"""Work of 350 W at 40 degC and of 250 W at 45 degC, in one period."""


def at_reference_w(part: BusyTime) -> float:
    """Power that the work would draw at the reference temperature."""
    return part.energy_j / part.time_s + A100.leakage_w_per_c * (A100.reference_temperature_c - part.temperature_c)


@given(st.floats(80, 400), st.floats(25, 70), st.floats(0.1, 10))
def test_steady_work_settles_where_heating_ends(power_w, measured_c, time_s):
    heating = Interval(power_w, 30.0, AMBIENT_C, A100)
    measured_w = power_w + A100.leakage_w_per_c * (measured_c - A100.reference_temperature_c)
    work = repeated_work([BusyTime(time_s, measured_w * time_s, measured_c)], time_s, waiting_j=0.0)
    assert work.settled_c(AMBIENT_C, A100) == pytest.approx(heating.temperature_c(1e3), abs=1e-6)
    assert work.settled_j(AMBIENT_C, A100) == pytest.approx(
        (heating.energy_j(1e3 + time_s) - heating.energy_j(1e3)), rel=1e-6
    )


def test_work_and_waiting_settle_to_one_mean_temperature():
    """Periods a hundred times as short as the thermal time, one after the other: temperature hardly moves in one."""
    period_s, shorter = 4.0, 1e-2
    temperature_c, energy_j = AMBIENT_C, 0.0
    for number in range(2_000):
        work_j = 0.0
        for part in PARTS:
            heating = Interval(at_reference_w(part), temperature_c, AMBIENT_C, A100)
            work_j += heating.energy_j(part.time_s * shorter)
            temperature_c = heating.temperature_c(part.time_s * shorter)
        waiting = Interval(85.0, temperature_c, AMBIENT_C, A100)
        temperature_c = waiting.temperature_c(shorter)
        energy_j = work_j + 85.0 * shorter if number == 1_999 else 0.0
    work = repeated_work(PARTS, period_s, waiting_j=85.0)
    assert work.settled_c(AMBIENT_C, A100) == pytest.approx(temperature_c, abs=0.5)
    assert work.settled_j(AMBIENT_C, A100) * shorter == pytest.approx(energy_j, rel=2e-3)


def test_it_does_not_matter_at_which_temperature_work_was_measured():
    hotter = [
        BusyTime(p.time_s, p.energy_j + 10 * A100.leakage_w_per_c * p.time_s, p.temperature_c + 10) for p in PARTS
    ]
    cool, hot = (repeated_work(parts, 4.0, 85.0).settled_j(AMBIENT_C, A100) for parts in (PARTS, hotter))
    assert hot == pytest.approx(cool, rel=1e-12)


@given(st.floats(60, 400), st.floats(20, 80), st.floats(0.1, 20))
def test_the_mean_temperature_of_a_window_is_told_by_its_ends(power_w, start_c, window_s):
    heating = Interval(power_w, start_c, AMBIENT_C, A100)
    leaked_w = heating.energy_j(window_s) / window_s - power_w
    found_c = window_temperature_c(start_c, heating.temperature_c(window_s), window_s, A100)
    assert found_c == pytest.approx(A100.reference_temperature_c + leaked_w / A100.leakage_w_per_c, abs=1e-6)


def test_short_windows_are_nearly_straight_lines():
    assert window_temperature_c(30.0, 31.0, 1e-3, A100) == pytest.approx(30.5)


def test_mean_temperatures_are_weighted_with_times():
    assert mean_temperature_c([(3.0, 40.0), (1.0, 60.0), (0.0, None)]) == pytest.approx(45.0)
    assert mean_temperature_c([(3.0, 40.0), (1.0, None)]) is None
    assert mean_temperature_c([]) is None


def test_work_of_an_unknown_temperature_has_no_warm_energy():
    assert repeated_work([*PARTS, BusyTime(1.0, 100.0, None)], 5.0, 85.0) is None


def test_chips_that_never_settle_are_refused():
    """Each degree leaks 1.5 W, which heats by more than a degree at 0.7 degC per W."""
    with pytest.raises(
        ConfigError, match=r"^coefficients: thermal_resistance_c_per_w x leakage_w_per_c=1\.05: must be below 1"
    ):
        dataclasses.replace(a100(), coefficients=dataclasses.replace(A100, thermal_resistance_c_per_w=0.7))
