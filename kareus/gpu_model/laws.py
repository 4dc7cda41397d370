"""Time of an operator or a collective alone, and its HBM traffic.

Rooflines with efficiencies, fill, wave quantisation and launch gaps; coefficients are the GPU's, never a workload's.
Clocks and SM counts may be numbers or arrays of one shape: all candidates of a partition are evaluated at once.
"""

import math

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.graph.records import Collective, Operator, OperatorKind

GEMM_TILE = (128, 128)
"""Output tile of a tensor-core GEMM: cuBLAS has larger ones, and picks among them what fills the last wave best."""
SPLITS = (2, 3, 4, 6, 8)
"""Numbers of parts into which a GEMM may split its inner dimension."""
FEW_WAVES = 4
"""Waves of tiles from which on splitting cannot pay: at most a fifth of them would be saved."""
PARTIAL_SUM_BYTES = 4
"""Partial sums are kept in single precision."""
ROOFLINE_NORM = 4
"""Exponent that joins compute and memory time; infinity would be a sharp roofline."""


def operator_time_s(
    gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array, hbm_share: Array | float = 1.0
) -> Array:
    """Return the time of `operator` alone on `sm_count` SMs, with `hbm_share` of the achievable HBM bandwidth."""
    bytes_per_s = hbm_bytes_per_s(gpu, sm_count) * hbm_share
    busy_s = (operator.bytes_read + operator.bytes_written) / bytes_per_s
    if operator.kind is OperatorKind.GEMM:
        busy_s = longer_s(_gemm_s(gpu, operator, frequency_mhz, sm_count, bytes_per_s), busy_s)
    elif operator.kind is not OperatorKind.MEMORY:
        peak_flops = gpu.peak_flops(frequency_mhz, sm_count)
        busy_s = longer_s(operator.flops / (peak_flops * _attention_efficiency(gpu, operator)), busy_s)
    copies_s = operator.copied_bytes / bytes_per_s
    return busy_s + copies_s + operator.launches * gpu.coefficients.kernel_overhead_s


def longer_s(one_s: Array, other_s: Array | float) -> Array:
    """Return the longer of two times that overlap almost entirely: their 4-norm."""
    long_s, short_s = np.maximum(one_s, other_s), np.minimum(one_s, other_s)
    return long_s * (1 + (short_s / long_s) ** ROOFLINE_NORM) ** (1 / ROOFLINE_NORM)


def hbm_bytes(operator: Operator) -> int:
    """Return the bytes that `operator` moves to and from HBM."""
    return operator.bytes_read + operator.bytes_written + operator.copied_bytes


def hbm_bytes_per_s(gpu: Gpu, sm_count: Array) -> Array:
    """Return the HBM bandwidth that `sm_count` SMs achieve: a share of them saturates it, at any clock."""
    saturation = np.minimum(1.0, sm_count / (gpu.coefficients.hbm_saturating_share * gpu.sm_count))
    return gpu.hbm_gb_per_s * 1e9 * gpu.coefficients.hbm_efficiency * saturation


def collective_time_s(gpu: Gpu, collective: Collective, frequency_mhz: Array, sm_count: Array) -> Array:
    """Return the time of `collective` alone on `sm_count` SMs.

    Bus bytes over a bandwidth that saturates with the SM count; a share of the time (`bus_clock_share`) scales with the
    SM clock, because SMs copy and reduce.
    """
    c = gpu.coefficients
    bytes_per_s = gpu.link_gb_per_s * 1e9 * c.bus_efficiency * sm_count / (sm_count + c.bus_half_sm_count)
    clock = 1 - c.bus_clock_share + c.bus_clock_share * gpu.maximum_clock_mhz / frequency_mhz
    return c.collective_latency_s + collective.bus_bytes / bytes_per_s * clock


def collective_hbm_bytes(gpu: Gpu, collective: Collective) -> float:
    """Return the HBM bytes that `collective` moves on one GPU."""
    return gpu.coefficients.hbm_bytes_per_bus_byte * collective.bus_bytes


def _attention_efficiency(gpu: Gpu, operator: Operator) -> float:
    c = gpu.coefficients
    forward = operator.kind is OperatorKind.ATTENTION
    return c.attention_forward_efficiency if forward else c.attention_backward_efficiency


def _gemm_s(gpu: Gpu, operator: Operator, frequency_mhz: Array, sm_count: Array, bytes_per_s: Array) -> Array:
    """Tensor-core time of a GEMM: whole tiles in whole waves over the SMs, each after filling its pipeline.

    A weight gradient has few tiles and an inner dimension of all tokens. Such a GEMM splits the inner dimension over
    SMs (split-K, as cuBLAS does), where that is faster although partial sums are written and read once more.
    """
    c = gpu.coefficients
    rows, columns, inner = operator.shape
    tiles = math.ceil(rows / GEMM_TILE[0]) * math.ceil(columns / GEMM_TILE[1])
    tile_flops = 2 * GEMM_TILE[0] * GEMM_TILE[1]
    one_sm_flops = gpu.peak_flops(frequency_mhz, np.ones_like(sm_count)) * c.gemm_efficiency
    least_s = np.ceil(tiles / sm_count) * tile_flops * (inner + c.gemm_inner_half) / one_sm_flops
    for parts in SPLITS if tiles < FEW_WAVES * gpu.sm_count else ():
        waves_s = np.ceil(tiles * parts / sm_count) * tile_flops * (inner / parts + c.gemm_inner_half) / one_sm_flops
        partial_bytes = 2 * PARTIAL_SUM_BYTES * rows * columns * parts
        least_s = np.minimum(least_s, waves_s + partial_bytes / bytes_per_s)
    return least_s
