"""What a profile says of a program without noise, against a measurement of it on a simulated chip."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import a100, gemm, memory, protocol, simulated
from helpers.examples import about
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model.model import Behaviour, run_program
from kareus.graph.records import Program, Step
from kareus.profile.heat import as_profiled
from kareus.profile.measure import measure_once
from kareus.testbed.protocol import open_testbed

PRODUCT = Program(name="product", steps=(Step(operators=(gemm("linear", 16384, 4096, 3072),)),))
TRAFFIC = Program(name="traffic", steps=(Step(operators=(memory("norm", 10**9),)),))
AMBIENT_C = 25.0


def noiseless():
    return simulated(time_noise=0.0, power_noise=0.0)


def of_power(power_w: float, time_s: float) -> Behaviour:
    value = np.array([time_s])
    return Behaviour(
        time_s=value, energy_j=power_w * value, mean_clock_mhz=np.array([1410.0]), power_limited=np.array([False])
    )


@about(20)
@given(
    program=st.sampled_from([PRODUCT, TRAFFIC]),
    mhz=st.sampled_from([900, 1080, 1260, 1410]),
    cooldown_s=st.sampled_from([1.0, 5.0]),
    window_s=st.sampled_from([5.0, 8.0]),
)
def test_profiles_without_noise_measure_it(program, mhz, cooldown_s, window_s):
    gpu, own = a100(), protocol(cooldown_s=cooldown_s, window_s=window_s)
    with open_testbed(noiseless(), gpu, own.predecessor_power_w, 0).session(program, "m") as session:
        measured = measure_once(session, mhz, own)
    told = as_profiled(gpu, own, run_program(gpu, program, mhz))
    assert float(told.time_s) == pytest.approx(measured["time_s"], rel=1e-9)
    # The counter moves every 0.1 s, at a moment that is drawn: it misses up to half of that at idle power.
    assert float(told.energy_j) == pytest.approx(measured["energy_j"], rel=6e-3)


@pytest.mark.parametrize(("power_w", "window_c"), [(220.0, 40.0), (300.0, 46.0), (380.0, 52.0)])
def test_windows_of_the_standard_protocol_are_this_warm(power_w, window_c):
    """Two roundings apart: with a thermal time of 1.8 s a window of 5 s has nearly settled, 25 degC + 0.1 degC/W."""
    gpu = a100()
    c = gpu.coefficients
    told = as_profiled(gpu, protocol(), of_power(power_w, 0.1))
    leaked_w = told.energy_j[0] / 0.1 - power_w
    assert c.reference_temperature_c + leaked_w / c.leakage_w_per_c == pytest.approx(window_c, abs=1.0)


def test_without_leakage_nothing_changes():
    gpu = a100(coefficients=dataclasses.replace(a100().coefficients, leakage_w_per_c=0.0))
    told = as_profiled(gpu, protocol(), of_power(250.0, 0.02))
    assert told.energy_j == pytest.approx([5.0], rel=1e-12)


def test_what_takes_no_time_costs_nothing():
    told = as_profiled(a100(), protocol(), of_power(0.0, 0.0))
    assert told.energy_j == 0
    assert told.time_s == 0
