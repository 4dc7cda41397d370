"""What is expected of a GPU before anything was measured on it: the GPU model with coefficients out of textbooks.

They are the same for every GPU; only hardware numbers (SMs, peaks, bandwidths, clocks, power limit, static power) are
the GPU's own. None was fitted: a simulated testbed runs the coefficients that `config/gpu/` gives, and a search that
started from those would search for what it knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.gpu_model.gpu import Gpu, GpuCoefficients
from kareus.gpu_model.model import run_schedules
from kareus.graph.records import Partition
from kareus.search.features import Features


@dataclass(frozen=True, slots=True)
class Expectation:
    """A coefficient that measurements recalibrate."""

    value: float
    spread: float
    """Standard deviation of its logarithm: how far off it may be."""


EXPECTED: Mapping[str, Expectation] = {
    # Throughput: large GEMMs reach about 80 % of peak (cuBLAS), fused attention about 60 % forward and less backward
    # (FlashAttention-2 paper), streaming kernels 85 % of HBM peak, ring collectives 80 % of their links.
    "gemm_efficiency": Expectation(0.8, 0.2),
    "gemm_inner_half": Expectation(150.0, 1.0),
    "attention_forward_efficiency": Expectation(0.6, 0.4),
    "attention_backward_efficiency": Expectation(0.5, 0.4),
    "hbm_efficiency": Expectation(0.85, 0.15),
    "bus_efficiency": Expectation(0.8, 0.3),
    "bus_half_sm_count": Expectation(4.0, 0.7),
    "bus_clock_share": Expectation(0.5, 0.7),
    "hbm_bytes_per_bus_byte": Expectation(2.0, 0.4),
    "collective_latency_s": Expectation(5e-5, 1.0),
    "contention": Expectation(0.3, 1.0),
    "crowding": Expectation(0.5, 1.0),
    "kernel_overhead_s": Expectation(1e-5, 1.0),
    # An operator of eager PyTorch keeps the host busy for about 10 us, of which the launch itself takes 3 to 5 us.
    "host_launch_s": Expectation(1e-5, 1.0),
    # Energy: 1 to 2 pJ a FLOP in tensor cores and tens of pJ a byte of HBM, by the energy tables of architecture texts.
    "clock_power_w": Expectation(100.0, 0.5),
    "gemm_j_per_flop": Expectation(1.0e-12, 0.5),
    "attention_j_per_flop": Expectation(1.2e-12, 0.5),
    "hbm_j_per_byte": Expectation(50e-12, 0.5),
    "hbm_core_j_per_byte": Expectation(20e-12, 0.7),
    "link_j_per_byte": Expectation(80e-12, 0.7),
    "link_core_j_per_byte": Expectation(30e-12, 0.7),
    # Voltage falls nearly linearly with the clock to a floor of 70 to 75 %, in published V-f tables.
    "voltage_slope": Expectation(1.0, 0.4),
    "voltage_curvature": Expectation(1.0, 0.6),
    "voltage_floor": Expectation(0.72, 0.1),
    "throttle_share": Expectation(0.95, 0.1),
}

NEVER_RECALIBRATED: Mapping[str, float] = {
    # They shape a search little.
    "hbm_saturating_share": 0.5,
    "throttle_step_mhz": 150.0,
    # No schedule of a partition depends on these: overheads of whole instructions, and heat.
    "isolation_overhead": 0.0,
    "instruction_overhead_s": 0.0,
    "leakage_w_per_c": 0.0,
    "reference_temperature_c": 0.0,
    "thermal_resistance_c_per_w": 1.0,
    "thermal_time_s": 1.0,
}

SHARES = {
    "gemm_efficiency",
    "attention_forward_efficiency",
    "attention_backward_efficiency",
    "hbm_efficiency",
    "bus_efficiency",
    "bus_clock_share",
    "voltage_floor",
    "throttle_share",
}
"""Coefficients that cannot exceed 1."""
TINY = 1e-30
"""Stands in for a coefficient of 0, which has no logarithm."""


def textbook(gpu: Gpu) -> Gpu:
    """Return `gpu` with the expected coefficients in place of its own, and no estimate of their errors.

    None of its own is left: a coefficient that has no expectation here is an error.
    """
    values = {name: e.value for name, e in EXPECTED.items()}
    return replace(gpu, coefficients=GpuCoefficients(**values, **NEVER_RECALIBRATED), uncertainty=None)


def sample_prior(
    gpu: Gpu, partition: Partition, features: Features, draws: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return log time and log power of all candidates on GPUs drawn from the prior, shape (draws, 2 candidates).

    Args:
        gpu: GPU with the most likely coefficients; others are log-normal around them, shares at most 1.
        partition: partition whose candidates are evaluated.
        features: features of every candidate.
        draws: number of GPUs; the first has the most likely coefficients.
        generator: draws their coefficients.
    """
    likely = np.log([max(getattr(gpu.coefficients, name), TINY) for name in EXPECTED])
    spreads = np.array([e.spread for e in EXPECTED.values()])
    deviations = generator.standard_normal((draws, len(EXPECTED))) * spreads
    deviations[0] = 0
    ensemble = np.empty((draws, 2 * len(features)))
    for place, logarithms in enumerate(likely + deviations):
        values = dict(zip(EXPECTED, np.exp(logarithms).tolist(), strict=True))
        known: dict[str, Any] = {name: min(value, 1.0) if name in SHARES else value for name, value in values.items()}
        drawn = replace(gpu, coefficients=replace(gpu.coefficients, **known))
        behaviour = run_schedules(drawn, partition, features.frequency_mhz, features.sm_count, features.launch_index)
        ensemble[place] = np.log(np.concatenate((behaviour.time_s, behaviour.power_w)))
    return ensemble
