"""Workloads on chips that have trained for minutes, against arithmetic by hand."""

import dataclasses

import pytest
from helpers.builders import CONFIG
from helpers.references import SMALL

from kareus.evidence.frontiers.subject import subject
from kareus.evidence.frontiers.warm_subject import in_training
from kareus.prediction.workload_prediction import predict
from kareus.workload.compose import compose


@pytest.fixture(scope="module")
def small():
    return subject(SMALL, ("testbed.ambient_c=40",), CONFIG)


def test_training_chips_leak_as_the_power_of_iterations_says(small):
    """The temperature is a fixed point: what it leaks makes it warmer."""
    gpu, parallelism = small.workload.gpu, small.workload.parallelism
    found = predict(small.workload)
    busy = 1 - sum(stage.bubble_s for stage in found.stages) / len(found.stages) / found.time_s
    power_w, c, ambient_c = found.energy_j / found.time_s / parallelism.gpus, gpu.coefficients, small.workload.ambient_c
    temperature_c = ambient_c
    for _ in range(100):
        leaked_w = c.leakage_w_per_c * (temperature_c - c.reference_temperature_c)
        temperature_c = ambient_c + c.thermal_resistance_c_per_w * (power_w + busy * leaked_w)
    # Messages between stages are in `predict` alone: they take 0.5 % of its iterations.
    assert in_training(small).workload.gpu.static_power_w - gpu.static_power_w == pytest.approx(leaked_w, abs=0.5)


def test_nothing_else_of_the_workload_changes(small):
    warm = in_training(small)
    cool = dataclasses.replace(warm.workload.gpu, static_power_w=small.workload.gpu.static_power_w)
    assert warm.on(cool).workload == small.workload
    assert warm.graphs is small.graphs


def test_chips_at_the_reference_temperature_stay_as_they_are(small):
    gpu = small.workload.gpu
    even = dataclasses.replace(
        gpu,
        coefficients=dataclasses.replace(
            gpu.coefficients, thermal_resistance_c_per_w=1e-6, reference_temperature_c=small.workload.ambient_c
        ),
    )
    assert in_training(small.on(even)).workload.gpu.static_power_w == pytest.approx(gpu.static_power_w, abs=0.001)


def test_chips_in_air_of_unknown_temperature_stay_as_they_are(small):
    """That before real GPUs need not be given."""
    (real,) = compose(["testbed=cuda"], CONFIG)
    workload = dataclasses.replace(small.workload, testbed=real.workload.testbed)
    own = dataclasses.replace(small, workload=workload)
    assert own.workload.ambient_c is None
    assert in_training(own) is own
