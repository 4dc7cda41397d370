"""Many GPUs at once: only some of their schedules meet the power limit, and each costs what it costs alone."""

import dataclasses

import numpy as np
from helpers.builders import a100, graphs

from kareus.gpu_model.coefficients import coefficients_of_many
from kareus.gpu_model.elements import elements_where
from kareus.gpu_model.model import run_schedules
from kareus.graph.interleave import partition_of
from kareus.graph.records import Batch

MLP = graphs()[Batch.NANOBATCH].forward[1]
PARTITION = partition_of(MLP, MLP.collective)
OWN = {
    "clock_power_w": np.array([20.0, 90.0, 160.0]),
    "throttle_share": np.array([1.0, 0.8, 0.9]),
    "voltage_floor": np.array([0.7, 0.75, 0.8]),
    "voltage_slope": np.array([0.3, 0.5, 0.4]),
    "gemm_efficiency": np.array([0.5, 0.8, 0.9]),
    "hbm_efficiency": np.array([0.7, 0.8, 0.9]),
}


def test_many_gpus_at_once_cost_what_each_costs_alone():
    grid = np.ix_(np.array([900.0, 1200.0, 1410.0]), np.array([6.0, 24.0]), np.array([0.0, 1.0]))
    columns = {name: values.reshape(3, 1, 1, 1) for name, values in OWN.items()}
    gpu = a100(power_limit_w=300)
    many = dataclasses.replace(gpu, coefficients=coefficients_of_many(gpu.coefficients, columns))
    together = run_schedules(many, PARTITION, *grid)
    assert 0 < together.power_limited.mean() < 1
    for n in range(3):
        own = {name: float(values[n]) for name, values in OWN.items()}
        one = dataclasses.replace(gpu, coefficients=dataclasses.replace(gpu.coefficients, **own))
        alone = run_schedules(one, PARTITION, *grid)
        assert np.allclose(together.time_s[n], alone.time_s, rtol=1e-12)
        assert np.allclose(together.energy_j[n], alone.energy_j, rtol=1e-12)
        assert np.array_equal(together.power_limited[n], alone.power_limited)


def test_elements_are_picked_from_what_broadcasts():
    elements = elements_where(np.array([[True, False, True], [False, False, True]]))
    assert elements.of(np.array([[10.0], [20.0]])).tolist() == [10.0, 10.0, 20.0]
    assert elements.of(np.array([1.0, 2.0, 3.0])).tolist() == [1.0, 3.0, 3.0]
    assert elements.of(5.0) == 5.0
