"""Chips that stay warm: what work costs at the temperature that it settles to, and temperatures of windows and sums."""

import dataclasses

import pytest
from helpers.builders import CONFIG, a100
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError
from kareus.gpu_model.thermal import (
    WAITING_SHARE,
    Interval,
    at_reference_j,
    of_profiles,
    settled,
    sustained_j,
    sustained_profile_j,
    window_temperature_c,
    with_numbers,
)
from kareus.workload.resolve import resolve_accepted

A100 = a100().coefficients
AMBIENT_C = 25.0


def measured_j(power_w, measured_c, time_s):
    """Energy at `measured_c` of work that draws `power_w` at the reference temperature."""
    return (power_w + A100.leakage_w_per_c * (measured_c - A100.reference_temperature_c)) * time_s


@pytest.mark.parametrize("name", ["h100-sxm5-80gb", "b200"])
def test_a_settled_gpu_settles_anew_with_other_numbers(name):
    """By hand: a chip at its limit is that much warmer than the air, and leaks as much more as it is warmer."""
    (workload,) = resolve_accepted([f"gpu={name}"], CONFIG).values()
    cool = of_profiles(workload.gpu)
    numbers = {"thermal_resistance_c_per_w": 0.11, "leakage_w_per_c": 1.7}
    again = with_numbers(settled(cool), 91.0, numbers)
    warm_c = cool.ambient_c + 0.11 * cool.power_limit_w
    assert warm_c > cool.coefficients.reference_temperature_c
    assert again.static_power_w == 91.0
    assert again.coefficients.reference_temperature_c == pytest.approx(warm_c)
    assert again.coefficients.warm_leakage_w == pytest.approx(
        1.7 * (warm_c - cool.coefficients.reference_temperature_c)
    )
    unsettled = with_numbers(cool, 91.0, numbers)
    assert unsettled.coefficients == dataclasses.replace(cool.coefficients, **numbers)
    assert of_profiles(again) == unsettled


@given(st.floats(80, 400), st.floats(25, 70), st.floats(0.1, 10))
def test_steady_work_settles_where_heating_ends(power_w, measured_c, time_s):
    """Without waiting, whatever temperature it was measured at."""
    heating = Interval(power_w, 30.0, AMBIENT_C, A100)
    measured = measured_j(power_w, measured_c, time_s)
    assert sustained_profile_j(a100(), measured, time_s, measured_c, waiting_share=0.0) == pytest.approx(
        (heating.energy_j(1e3 + time_s) - heating.energy_j(1e3)), rel=1e-6
    )


def test_work_and_waiting_settle_to_one_mean_temperature():
    """Periods a hundred times as short as the thermal time, one after the other: temperature hardly moves in one."""
    power_w, period_s = 350.0, 1e-2
    worked_s, temperature_c, energy_j = (1 - WAITING_SHARE) * period_s, AMBIENT_C, 0.0
    for _ in range(2_000):
        heating = Interval(power_w, temperature_c, AMBIENT_C, A100)
        temperature_c, energy_j = heating.temperature_c(worked_s), heating.energy_j(worked_s)
        waiting = Interval(a100().blocking_power_w, temperature_c, AMBIENT_C, A100)
        temperature_c = waiting.temperature_c(period_s - worked_s)
    assert sustained_j(a100(), power_w * worked_s, worked_s) == pytest.approx(energy_j, rel=2e-3)


@given(st.floats(80, 400), st.floats(0.1, 10), st.floats(25, 70), st.floats(25, 70))
def test_it_does_not_matter_at_which_temperature_work_was_measured(power_w, time_s, cool_c, hot_c):
    cool, hot = (
        sustained_profile_j(a100(), measured_j(power_w, at_c, time_s), time_s, at_c) for at_c in (cool_c, hot_c)
    )
    assert hot == pytest.approx(cool, rel=1e-12)


@given(st.floats(10, 4000), st.floats(0.1, 10))
def test_sustained_energies_add_up_and_have_an_inverse(energy_j, time_s):
    parts = (0.25, 0.75)
    whole = sustained_j(a100(), energy_j, time_s)
    assert sum(sustained_j(a100(), n * energy_j, n * time_s) for n in parts) == pytest.approx(whole)
    assert at_reference_j(a100(), whole, time_s) == pytest.approx(energy_j)


def test_a_window_of_unknown_temperature_changes_no_energy():
    assert sustained_profile_j(a100(), 100.0, 1.0, None) == 100.0


@given(st.floats(60, 400), st.floats(20, 80), st.floats(0.1, 20))
def test_the_mean_temperature_of_a_window_is_told_by_its_ends(power_w, start_c, window_s):
    heating = Interval(power_w, start_c, AMBIENT_C, A100)
    leaked_w = heating.energy_j(window_s) / window_s - power_w
    found_c = window_temperature_c(start_c, heating.temperature_c(window_s), window_s, A100)
    assert found_c == pytest.approx(A100.reference_temperature_c + leaked_w / A100.leakage_w_per_c, abs=1e-6)


def test_short_windows_are_nearly_straight_lines():
    assert window_temperature_c(30.0, 31.0, 1e-3, A100) == pytest.approx(30.5)


def test_chips_that_never_settle_are_refused():
    """Each degree leaks 1.5 W, which heats by more than a degree at 0.7 degC per W."""
    with pytest.raises(
        ConfigError, match=r"^coefficients: thermal_resistance_c_per_w x leakage_w_per_c=1\.05: must be below 1"
    ):
        dataclasses.replace(a100(), coefficients=dataclasses.replace(A100, thermal_resistance_c_per_w=0.7))
