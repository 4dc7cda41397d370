import math

import pytest
from helpers.builders import a100, gemm, protocol, simulated
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model.thermal import Interval
from kareus.graph.records import Program, Step
from kareus.testbed.protocol import open_testbed

PROGRAM = Program(name="linear", steps=(Step(operators=(gemm("linear", 16384, 4096, 3072),)),))


def session(measurement="m", seed=0, **changes):
    return open_testbed(simulated(**changes), a100(), protocol().predecessor_power_w, seed).session(
        PROGRAM, measurement
    )


def run(measurement="m", seed=0, seconds=5.0, **changes):
    with session(measurement, seed, **changes) as s:
        start_s, start_j = s.now_s(), s.energy_j()
        s.execute(1)
        repetitions = math.ceil(seconds / (s.now_s() - start_s))
        s.execute(repetitions)
        repetitions += 1
        return (s.now_s() - start_s) / repetitions, (s.energy_j() - start_j) / repetitions, s.temperature_c()


def test_the_same_measurement_and_seed_give_the_same_numbers():
    assert run("m", 3) == run("m", 3)


@pytest.mark.parametrize("other", [("n", 3), ("m", 4)])
def test_another_measurement_or_seed_draws_other_noise(other):
    assert run("m", 3) != run(*other)


def test_what_ran_before_leaves_a_measurement_as_it_is():
    """Programs of one testbed share steps, whose costs it remembers by step and clock."""
    testbed = open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0)
    step, other = PROGRAM.steps[0], Step(operators=(gemm("other", 16384, 4096, 1024),))

    def measured(testbed, steps, frequency_mhz):
        with testbed.session(Program(name="p", steps=steps), "m") as s:
            s.set_clock(frequency_mhz)
            s.execute(100)
            return s.now_s(), s.energy_j(), s.clock_report()

    runs = [((step,), 1410), ((other, step), 1410), ((step,), 900), ((step, step, other), 900), ((step,), 1410)]
    for steps, frequency_mhz in runs:
        fresh = open_testbed(simulated(), a100(), protocol().predecessor_power_w, 0)
        assert measured(testbed, steps, frequency_mhz) == measured(fresh, steps, frequency_mhz)


def test_noise_is_as_large_as_configured():
    times = [run(f"m{i}", time_noise=0.01)[0] for i in range(300)]
    mean = sum(times) / len(times)
    deviation = (sum((t / mean - 1) ** 2 for t in times) / len(times)) ** 0.5
    assert deviation == pytest.approx(0.01, rel=0.2)


def test_the_energy_counter_moves_in_steps_of_its_period():
    with session(counter_period_s=0.1) as s:
        readings = []
        for _ in range(40):
            s.rest(0.01)
            readings.append(s.energy_j())
    assert len(set(readings)) in (4, 5)


def test_the_counter_never_runs_ahead_of_the_energy_drawn():
    with session(counter_period_s=0.1) as s:
        before = s.energy_j()
        s.rest(100.0)
        static_w = a100().static_power_w
        assert 0.9 * 100 * static_w * 0.5 < s.energy_j() - before < 1.1 * 100.1 * static_w


def test_work_heats_and_rest_cools():
    with session() as s:
        hot_c = s.temperature_c()
        s.rest(1.0)
        cooler_c = s.temperature_c()
        s.rest(60.0)
        cold_c = s.temperature_c()
        s.execute(2000)
        assert hot_c > cooler_c > cold_c
        assert s.temperature_c() > cold_c


def test_energy_reads_high_after_too_short_a_cooldown():
    """Paper, section 6.7: energy follows the temperature at the start of the window."""

    def energy_after(cooldown_s):
        with session(time_noise=0.0, power_noise=0.0, counter_period_s=1e-6) as s:
            s.rest(cooldown_s)
            before = s.energy_j()
            s.execute(500)
            return s.energy_j() - before

    assert energy_after(0.0) > energy_after(2.0) > energy_after(5.0)
    assert energy_after(5.0) == pytest.approx(energy_after(10.0), rel=0.01)


@given(st.floats(60, 400), st.floats(20, 80), st.floats(0.1, 20))
def test_heating_solves_its_differential_equation(power_w, start_c, seconds):
    c = a100().coefficients
    interval = Interval(power_w, start_c, 28.0, c)
    steps = 20_000
    temperature_c, energy_j, dt = start_c, 0.0, seconds / steps
    for _ in range(steps):
        power_now_w = power_w + c.leakage_w_per_c * (temperature_c - c.reference_temperature_c)
        energy_j += power_now_w * dt
        temperature_c += (28.0 + c.thermal_resistance_c_per_w * power_now_w - temperature_c) / c.thermal_time_s * dt
    assert interval.temperature_c(seconds) == pytest.approx(temperature_c, abs=0.05)
    assert interval.energy_j(seconds) == pytest.approx(energy_j, rel=2e-3)
