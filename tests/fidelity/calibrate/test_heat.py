"""Idle and sustained power: leakage, static power and heat of a simulated GPU are found, or said to be unknown."""

from dataclasses import replace

import pytest
from helpers.builders import a100
from helpers.calibrations import PROTOCOL, hidden_testbed, shelves

from kareus.fidelity.calibrate.coefficients import OF_HEAT
from kareus.fidelity.calibrate.heat import heat_of, heat_readings
from kareus.fidelity.calibrate.rehearsal import hidden_gpu


@pytest.fixture(scope="module")
def readings():
    rows, _ = heat_readings(hidden_testbed(hidden_gpu(a100(), 5)), PROTOCOL, 1410, shelves().heat)
    return rows


def test_leakage_heat_and_static_power_are_found(readings):
    hidden, heat = hidden_gpu(a100(), 5), heat_of(readings, a100())
    assert heat.static_power_w == pytest.approx(hidden.static_power_w, rel=0.03)
    for name in OF_HEAT:
        assert heat.coefficients[name] == pytest.approx(getattr(hidden.coefficients, name), rel=0.06)
    assert heat.idle_w < heat.static_power_w < heat.sustained_w


def test_readings_of_one_temperature_tell_nothing_of_heat(readings):
    heat = heat_of([row | {"temperature_c": 40.0} for row in readings], a100())
    assert heat.coefficients == {}
    assert heat.applied(a100()) == a100()


def test_a_heat_sink_that_settles_slowly_is_found_from_whole_degrees():
    hidden = a100(coefficients=replace(a100().coefficients, thermal_time_s=20.0))
    rows, _ = heat_readings(hidden_testbed(hidden), PROTOCOL, 1410, shelves().heat)
    heat = heat_of([row | {"temperature_c": float(round(row["temperature_c"]))} for row in rows], a100())
    assert heat.static_power_w == pytest.approx(hidden.static_power_w, rel=0.05)
    for name in OF_HEAT:
        assert heat.coefficients[name] == pytest.approx(getattr(hidden.coefficients, name), rel=0.2)
