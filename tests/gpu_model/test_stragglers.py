"""A job waits for its slowest GPU, where the power limit holds GPUs back."""

import dataclasses
import functools

import numpy as np
import pytest
from helpers.builders import a100, gemm
from hypothesis import given
from hypothesis import strategies as st

from kareus.gpu_model.coefficients import LaunchesAhead
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import Behaviour, run_program
from kareus.gpu_model.stragglers import TIME_VARIATION, limited_share, slowest_of
from kareus.graph.records import Program, Step

LARGEST_OF = {10: 1.53875, 100: 2.50759, 1000: 3.24144}
"""Expectation of the largest of as many normal numbers, in standard deviations (Harter, Biometrika 48, 1961)."""


def test_one_gpu_waits_for_none() -> None:
    assert slowest_of(1) == 1


@pytest.mark.parametrize(("gpus", "deviations"), LARGEST_OF.items())
def test_the_slowest_is_about_the_largest_of_normal_numbers(gpus: int, deviations: float) -> None:
    assert slowest_of(gpus) - 1 == pytest.approx(TIME_VARIATION * deviations, rel=0.15)


def test_the_slowest_of_more_gpus_is_slower() -> None:
    factors = slowest_of(np.array([1, 8, 64, 512, 16384]))
    assert (np.diff(factors) > 0).all()
    assert factors[-1] < 1.05


def test_fewer_gpus_are_held_back_the_further_their_power_is_below_the_limit() -> None:
    gpu = a100()
    power_w = gpu.throttling_power_w * np.array([1.2, 1.0, 0.98, 0.9, 0.5])
    shares = limited_share(gpu, np.stack([np.ones(5), power_w, np.ones(5)]))
    assert shares[:2].tolist() == [1, 1]
    assert (np.diff(shares[1:]) < 0).all()
    assert shares[-1] < 1e-6


def ran(limit_w: float, gpus: int) -> Behaviour:
    coefficients = dataclasses.replace(a100().coefficients, host_launch_s=0.0, limiter_s=0.1)
    gpu: Gpu = a100(coefficients=coefficients, power_limit_w=limit_w, job_gpus=gpus, launches_ahead=LaunchesAhead.PASS)
    step = Step(operators=(gemm("large", 16384, 8192, 8192),))
    return run_program(gpu, Program(name="test", steps=(step,), blocks=None), np.array(1410.0))


@functools.cache
def free_w() -> float:
    """Power without a limit."""
    return float(ran(10_000.0, 1).power_w)


@given(st.floats(0.6, 0.99), st.integers(2, 20_000))
def test_a_job_that_the_limit_holds_back_waits_at_less_than_its_power(share: float, gpus: int) -> None:
    alone, together = ran(share * free_w(), 1), ran(share * free_w(), gpus)
    assert float(together.time_s) == pytest.approx(float(alone.time_s * slowest_of(gpus)))
    assert together.power_w < alone.power_w


@given(st.integers(2, 20_000))
def test_a_job_far_below_the_limit_waits_for_none(gpus: int) -> None:
    assert ran(2 * free_w(), gpus).time_s == ran(2 * free_w(), 1).time_s
