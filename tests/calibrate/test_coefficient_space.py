"""Logarithms of coefficients that are fitted: there and back, bounds, and what a comment says of them."""

import numpy as np
import pytest
from helpers.builders import a100

from kareus.calibrate.coefficient_space import bound_note, space_of, with_coefficients
from kareus.gpu_model.declarations import FitData, FitPrior

PRIORS = {
    "gemm_efficiency": FitPrior(FitData.KERNELS, 0.8, 0.6, 1.0, 0.1),
    "clock_power_w": FitPrior(FitData.KERNELS, 200.0, 50.0, 500.0, 0.5),
}
SPACE = space_of(PRIORS)


def test_logarithms_of_values_are_those_values_again():
    gpu = with_coefficients(a100(), {"gemm_efficiency": 0.7, "clock_power_w": 90.0})
    found = SPACE.values(SPACE.logarithms(gpu.coefficients))
    assert found == pytest.approx({"gemm_efficiency": 0.7, "clock_power_w": 90.0})
    assert gpu.coefficients.hbm_efficiency == a100().coefficients.hbm_efficiency


def test_distances_count_standard_deviations():
    assert SPACE.distances(np.log([0.8 * np.e**0.1, 200.0])) == pytest.approx([1.0, 0.0])


def test_values_beyond_bounds_are_moved_inside():
    assert SPACE.values(SPACE.clipped(np.log([0.1, 1000.0]), 0.0)) == pytest.approx(
        {"gemm_efficiency": 0.6, "clock_power_w": 500.0}
    )
    assert SPACE.clipped(np.log([0.1, 100.0]), 0.01) == pytest.approx([np.log(0.6) + 0.01, np.log(100.0)])


def test_a_comment_says_what_a_bound_holds():
    prior = PRIORS["gemm_efficiency"]
    assert bound_note(prior, 0.999) == bound_note(prior, 0.6) == ", at the bound of its range"
    assert bound_note(prior, 0.8) == ""
