"""Coefficients that a calibration fits, what is expected of them, and predictions for many GPUs at once.

A coefficient is expected near its value in the file that the calibration starts from, log-normally, as far from it as
its declaration says. A law that is absent in that file stays absent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.arrays import Array
from kareus.calibrate.priors import ATTENTION_PRIORS, COLLECTIVE_PRIORS, FP8_PRIORS, GEMM_PRIORS
from kareus.gpu_model.coefficients import COEFFICIENTS, KERNELS_ONLY, OF_SOFTWARE, coefficients_of_many
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.model import run_program
from kareus.graph.records import Program

OF_LINKS = frozenset({
    "bus_efficiency", "bus_half_sm_count", "bus_clock_share", "hbm_bytes_per_bus_byte", "collective_latency_s",
    "link_j_per_byte", "link_core_j_per_byte", "collective_step_s", "own_shard_copy", "fast_protocol_latency",
    "fast_protocol_bandwidth", "middle_protocol_latency", "middle_protocol_bandwidth", "switch_efficiency",
    "switch_latency_s",
})  # fmt: skip
"""Coefficients of collectives alone. A loopback has such ones, too, but they are not those of links."""
NOT_IN_KERNELS = frozenset({
    *OF_SOFTWARE, "hbm_saturating_share", "l2_share", "fp8_energy_share",
    "fp8_efficiency", "fp8_step_s", "fp8_misalignment", "cast_row_s", "cast_efficiency", "cast_s",
    "widest_head_slowdown", "limiter_s", "crowding_exponent",
})  # fmt: skip
"""Coefficients that no probe shows: of the software that trains, of fp8, of benchmarks that find operands in L2, and
how crowding grows between the few numbers of SMs that are probed."""
OF_HEAT = ("leakage_w_per_c", "thermal_resistance_c_per_w", "thermal_time_s")
"""Coefficients that are measured by themselves (`kareus.calibrate.heat`)."""
DEVIATIONS = 4.0
"""Distance of the bounds of a fit from what is expected, in standard deviations."""
STEP = 0.02
"""Change of a logarithm over which slopes are taken: wide enough for times that jump where another tile is faster."""
_OF_KERNELS = {
    name: prior.spread
    for priors in (GEMM_PRIORS, FP8_PRIORS, ATTENTION_PRIORS, COLLECTIVE_PRIORS)
    for name, prior in priors.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expectation of one coefficient."""

    value: float
    """Median."""
    spread: float
    """Standard deviation of the logarithm."""
    lower: float
    upper: float


def expectations(gpu: Gpu) -> dict[str, Expected]:
    """Return the coefficients to fit, those of links among them, around the values that `gpu` has."""
    expected = {}
    for name, coefficient in COEFFICIENTS.items():
        value, prior = getattr(gpu.coefficients, name), coefficient.prior
        spread = prior.spread or (coefficient.fit.spread if coefficient.fit else None) or _OF_KERNELS.get(name)
        absent = value <= 0 or (prior.origin == KERNELS_ONLY and value == prior.median)
        if spread is None or absent or name in NOT_IN_KERNELS or name in OF_HEAT:
            continue
        distance = math.exp(DEVIATIONS * spread)
        lower, upper = max(value / distance, coefficient.least), min(value * distance, coefficient.most)
        expected[name] = Expected(value=value, spread=spread, lower=lower, upper=max(upper, 1.001 * lower))
    return expected


def log_costs(gpu: Gpu, values: Mapping[str, Array], program: Program, clocks_mhz: Sequence[float]) -> Array:
    """Return the logarithms of time and power of a program on GPUs that differ in coefficients.

    Args:
        gpu: what they share.
        values: coefficients by name, each of shape (GPUs,).
        program: runs once on each.
        clocks_mhz: clocks at which it does.

    Returns:
        Array of shape (2, GPUs, clocks), at the reference temperature.
    """
    many = replace(gpu, coefficients=coefficients_of_many(gpu.coefficients, {n: v[:, None] for n, v in values.items()}))
    gpus = max((len(of_gpus) for of_gpus in values.values()), default=1)
    requested = np.tile(np.asarray(clocks_mhz, dtype=np.float64), (gpus, 1))
    behaviour = run_program(many, program, requested)
    return np.log(np.stack([behaviour.time_s, behaviour.power_w]))


def log_costs_and_slopes(
    gpu: Gpu, names: Sequence[str], logarithms: Array, program: Program, clocks_mhz: Sequence[float]
) -> tuple[Array, Array]:
    """Return `log_costs` of one GPU, shape (2, clocks), and their slopes, shape (2, clocks, coefficients).

    Args:
        gpu: all other numbers.
        names: coefficients whose logarithms the slopes are taken over.
        logarithms: of their values.
        program: runs once.
        clocks_mhz: clocks at which it does.
    """
    shares = np.array([COEFFICIENTS[name].is_share for name in names])
    steps = np.where(shares & (logarithms + STEP > 0), -STEP, STEP)
    points = np.exp(logarithms + np.vstack([np.zeros(len(names)), np.diag(steps)]))
    costs = log_costs(gpu, dict(zip(names, points.T, strict=True)), program, clocks_mhz)
    slopes = (costs[:, 1:] - costs[:, :1]) / steps[:, None]
    return costs[:, 0], np.moveaxis(slopes, 1, 2)
