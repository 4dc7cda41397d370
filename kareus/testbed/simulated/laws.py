"""How long an operator or a collective takes alone, and how fast it draws on HBM.

Rooflines with efficiencies, fill, wave quantisation and launch gaps; coefficients are the GPU's, never a workload's.
Clocks and SM counts may be numbers or arrays of one shape: all candidates of a partition are evaluated at once.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kareus.partition.graph import Collective, Operator, OperatorKind
from kareus.workload.gpu import Gpu

Array = NDArray[np.float64]

GEMM_TILE = (128, 256)
"""Output tile of a large tensor-core GEMM, the largest that cuBLAS picks on A100 and H100."""
ROOFLINE_NORM = 4
"""Exponent that joins compute and memory time; infinity would be a sharp roofline."""


def operator_time_s(
    gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array, hbm_share: Array | float = 1.0
) -> Array:
    """Time of `operator` alone on `sm_count` SMs, with `hbm_share` of the achievable HBM bandwidth."""
    busy_s = hbm_bytes(operator) / (hbm_bytes_per_s(gpu, sm_count) * hbm_share)
    if operator.kind is not OperatorKind.MEMORY:
        compute_s = operator.flops / (
            gpu.peak_flops(frequency_mhz, sm_count) * _compute_efficiency(gpu, operator, sm_count)
        )
        busy_s = longer_s(compute_s, busy_s)
    return busy_s + operator.kernels * gpu.coefficients.kernel_overhead_s


def longer_s(one_s: Array, other_s: Array | float) -> Array:
    """The longer of two times that overlap almost entirely: their 4-norm."""
    long_s, short_s = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    return long_s * (1 + (short_s / long_s) ** ROOFLINE_NORM) ** (1 / ROOFLINE_NORM)


def hbm_bytes(operator: Operator) -> int:
    """Bytes that `operator` moves to and from HBM."""
    return operator.bytes_read + operator.bytes_written


def hbm_bytes_per_s(gpu: Gpu, sm_count: Array) -> Array:
    """Achievable HBM bandwidth of `sm_count` SMs: a share of them saturates it. It does not move with the clock."""
    saturation = np.minimum(1.0, sm_count / (gpu.coefficients.hbm_saturating_share * gpu.sm_count))
    return gpu.hbm_gb_per_s * 1e9 * gpu.coefficients.hbm_efficiency * saturation


def collective_time_s(gpu: Gpu, collective: Collective, frequency_mhz: Array, sm_count: Array) -> Array:
    """Time of `collective` alone on `sm_count` SMs.

    Bus bytes over a bandwidth that saturates with the SM count; a share of the time (`bus_clock_share`) scales with the
    SM clock, because SMs copy and reduce.
    """
    c = gpu.coefficients
    bytes_per_s = gpu.link_gb_per_s * 1e9 * c.bus_efficiency * sm_count / (sm_count + c.bus_half_sm_count)
    clock = 1 - c.bus_clock_share + c.bus_clock_share * gpu.maximum_clock_mhz / frequency_mhz
    return c.collective_latency_s + collective.bus_bytes / bytes_per_s * clock


def collective_hbm_bytes(gpu: Gpu, collective: Collective) -> float:
    """HBM bytes that `collective` moves on one GPU."""
    return gpu.coefficients.hbm_bytes_per_bus_byte * collective.bus_bytes


def _compute_efficiency(gpu: Gpu, operator: Operator, sm_count: Array) -> Array | float:
    c = gpu.coefficients
    if operator.kind is OperatorKind.ATTENTION:
        return c.attention_forward_efficiency
    if operator.kind is OperatorKind.ATTENTION_BACKWARD:
        return c.attention_backward_efficiency
    rows, columns, inner = operator.shape
    return c.gemm_efficiency * inner / (inner + c.gemm_inner_half) * _quantisation(rows, columns, sm_count)


def _quantisation(rows: int, columns: int, sm_count: Array) -> Array:
    """Share of useful work in whole tiles and whole waves of tiles over the SMs."""
    tiles = math.ceil(rows / GEMM_TILE[0]) * math.ceil(columns / GEMM_TILE[1])
    useful_tiles = rows / GEMM_TILE[0] * columns / GEMM_TILE[1]
    return useful_tiles / (np.ceil(tiles / sm_count) * sm_count)
