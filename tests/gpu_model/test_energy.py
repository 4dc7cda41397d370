"""The law of power: what goes with the clock, with the voltage, and with neither."""

import dataclasses

import numpy as np
import pytest
from helpers.builders import all_reduce, gemm, plain_a100

from kareus.gpu_model.attention import AttentionShape
from kareus.gpu_model.energy import (
    attention_core_j,
    collective_switching,
    held_power_w,
    idle_power_w,
    operator_switching,
    relative_voltage,
    resting_power_w,
)
from kareus.gpu_model.model import step_cost


def test_the_clock_tree_goes_with_the_square_of_the_voltage():
    gpu = plain_a100()
    for clock_mhz in (900.0, 1100.0, 1300.0, 1410.0):
        voltage = float(relative_voltage(gpu, clock_mhz))
        tree_w = gpu.coefficients.clock_power_w * voltage**2 * clock_mhz / 1410
        assert float(idle_power_w(gpu, clock_mhz)) == pytest.approx(60.0 + tree_w)
    assert float(relative_voltage(gpu, 1100.0)) < 0.85


def test_work_pays_for_itself_and_for_the_time_that_it_takes():
    gpu, switching = plain_a100(), operator_switching(plain_a100(), gemm("g", 512, 512, 512))
    for clock_mhz in (900.0, 1200.0, 1410.0):
        both_j = float(switching.at_j(gpu, clock_mhz)) + 0.25 * float(idle_power_w(gpu, clock_mhz))
        assert float(switching.busy_j(gpu, clock_mhz, 0.25)) == pytest.approx(both_j)


def test_arithmetic_goes_with_the_square_of_the_voltage():
    gpu = plain_a100()
    free = dataclasses.replace(gpu.coefficients, hbm_j_per_byte=0.0, hbm_core_j_per_byte=0.0)
    switching = operator_switching(dataclasses.replace(gpu, coefficients=free), gemm("g", 512, 512, 512))
    voltage = float(relative_voltage(gpu, 1100.0))
    assert float(switching.at_j(gpu, 1100.0)) == pytest.approx(2 * 512**3 * free.gemm_j_per_flop * voltage**2)


def test_a_collective_pays_for_links_and_memory():
    gpu = plain_a100()
    one, c = all_reduce(2**20), gpu.coefficients
    per_byte = c.link_j_per_byte + c.link_core_j_per_byte
    per_byte += c.hbm_bytes_per_bus_byte * (c.hbm_j_per_byte + c.hbm_core_j_per_byte)
    assert float(collective_switching(gpu, one).at_j(gpu, 1410.0)) == pytest.approx(one.bus_bytes * per_byte)


def test_held_sms_draw_power_each_as_the_clock_tree_does():
    gpu = plain_a100()
    for clock_mhz in (900.0, 1410.0):
        scale = float(relative_voltage(gpu, clock_mhz)) ** 2 * clock_mhz / 1410
        assert float(held_power_w(gpu, 12.0, clock_mhz)) == pytest.approx(12 * gpu.coefficients.collective_sm_w * scale)


def test_a_step_pays_for_the_sms_of_its_collective_over_its_time():
    """An all-reduce alone, at a clock below the power limit."""
    gpu, clock = plain_a100(), np.asarray(1110.0)
    free = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, collective_sm_w=0.0))
    own, without = (step_cost(g, (), all_reduce(2**28), clock, 12, 0) for g in (gpu, free))
    assert float(own[0]) == float(without[0])
    assert float(own[1] - without[1]) == pytest.approx(float(held_power_w(gpu, 12.0, clock) * own[0]))


def test_attention_pays_for_scores_that_tiles_compute_beside():
    """A window of 128 keys in tiles of 128: twice the scores that count."""
    gpu, one = plain_a100(), AttentionShape(1, 8, 8192, 8192, 128, window=128)
    tiled = dataclasses.replace(gpu, attention_tile=(128, 128))
    assert float(attention_core_j(gpu, one, 1e12)) == pytest.approx(1e12 * gpu.coefficients.attention_j_per_flop)
    assert float(attention_core_j(tiled, one, 1e12)) == pytest.approx(
        2 * float(attention_core_j(gpu, one, 1e12)), rel=0.02
    )


def test_a_score_costs_its_exponential_whatever_the_width():
    gpu = plain_a100()
    costly = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, softmax_j=1e-10))
    for head_dim in (64, 256):
        one = AttentionShape(2, 8, 4096, 4096, head_dim)
        added = float(attention_core_j(costly, one, 1e12)) - float(attention_core_j(gpu, one, 1e12))
        assert added == pytest.approx(1e-10 * 2 * 8 * 4096**2 / 2)


def test_leakage_goes_with_its_power_of_the_voltage_and_is_the_same_at_the_least_one():
    gpu = plain_a100()
    c = dataclasses.replace(gpu.coefficients, warm_leakage_w=30.0)
    same = dataclasses.replace(gpu, coefficients=c)
    leaking = dataclasses.replace(gpu, coefficients=dataclasses.replace(c, core_leakage_w=25.0, leakage_exponent=3.0))
    for clock_mhz in (600.0, 1100.0, 1300.0, 1410.0):
        voltage = float(relative_voltage(gpu, clock_mhz))
        more_w = 25.0 * (voltage**3 - c.voltage_floor**3) - 30.0 * (1 - voltage**3)
        added_w = float(idle_power_w(leaking, clock_mhz)) - float(idle_power_w(same, clock_mhz))
        assert added_w == pytest.approx(more_w)
    assert resting_power_w(leaking) == pytest.approx(gpu.static_power_w + 30.0 * c.voltage_floor**3)
