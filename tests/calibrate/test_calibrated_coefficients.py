"""GPUs that differ in coefficients are evaluated together: that each costs what it costs alone."""

import numpy as np
import pytest
from helpers.builders import CONFIG

from kareus.calibrate.coefficient_space import with_coefficients
from kareus.calibrate.coefficients import expectations, log_costs
from kareus.calibrate.probes import probes
from kareus.workload.compose import compose


@pytest.mark.parametrize("option", ["a100-sxm4-40gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "h200", "b200"])
def test_many_gpus_cost_what_each_costs_alone(option):
    (composition,) = compose([f"gpu={option}"], CONFIG)
    gpu = composition.workload.gpu
    drawn = np.random.default_rng(1)
    values = {name: drawn.uniform(one.lower, one.value, 3) for name, one in expectations(gpu).items()}
    clocks_mhz = (gpu.search_frequencies.minimum_mhz, gpu.maximum_clock_mhz)
    of_kind = {probe.kind: probe.program for probe in probes(gpu.gpus_per_node)}
    for kind, program in of_kind.items():
        together = log_costs(gpu, values, program, clocks_mhz)
        for number in range(3):
            own = with_coefficients(gpu, {name: float(many[number]) for name, many in values.items()})
            alone = log_costs(own, {}, program, clocks_mhz)
            assert together[:, number] == pytest.approx(alone[:, 0], abs=1e-9), (kind, number)
