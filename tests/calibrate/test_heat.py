"""Idle and sustained power: leakage, static power and heat of a simulated GPU are found, or said to be unknown."""

from dataclasses import replace
from math import floor
from statistics import median

import pytest
from helpers.builders import CONFIG, a100
from helpers.calibrations import PROTOCOL, hidden_testbed, shelves

from kareus.calibrate.coefficients import OF_HEAT
from kareus.calibrate.heat import heat_of, heat_readings
from kareus.calibrate.rehearsal import hidden_gpu
from kareus.gpu_model.energy import resting_power_w
from kareus.workload.compose import compose, with_engine


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


def test_what_a_warm_chip_leaks_is_no_static_power():
    """Its numbers are at the temperature that its power limit heats it to, those of its file at another."""
    (composition,) = compose(with_engine(["gpu=h200"]), CONFIG)
    start = composition.workload.gpu
    hidden = hidden_gpu(start, 2)
    rows, _ = heat_readings(hidden_testbed(hidden), PROTOCOL, start.maximum_clock_mhz, shelves().heat)
    warm = heat_of(rows, start).applied(start)
    assert start.coefficients.warm_leakage_w > 0
    assert warm.static_power_w == pytest.approx(hidden.static_power_w, rel=0.05)
    assert resting_power_w(warm) == pytest.approx(resting_power_w(hidden), rel=0.05)


def test_readings_of_one_temperature_tell_nothing_of_heat(readings):
    heat = heat_of([row | {"temperature_c": 40.0} for row in readings], a100())
    assert heat.coefficients == {}
    assert heat.applied(a100()) == a100()


def test_a_heat_sink_that_settles_slowly_is_found_from_whole_degrees():
    """Where whole degrees fall between temperatures is luck, so that sensors with eight offsets are read."""
    hidden = a100(coefficients=replace(a100().coefficients, thermal_time_s=20.0))
    rows, _ = heat_readings(hidden_testbed(hidden), PROTOCOL, 1410, shelves().heat)
    found = [
        heat_of([row | {"temperature_c": float(floor(row["temperature_c"] + eighth / 8))} for row in rows], a100())
        for eighth in range(8)
    ]
    for heat in found:
        assert heat.static_power_w == pytest.approx(hidden.static_power_w, rel=0.05)
    for name in OF_HEAT:
        values = [heat.coefficients[name] for heat in found]
        assert values == pytest.approx([getattr(hidden.coefficients, name)] * 8, rel=0.3)
        assert median(values) == pytest.approx(getattr(hidden.coefficients, name), rel=0.1)
