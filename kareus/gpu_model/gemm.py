"""Time of a GEMM's arithmetic: tiles in waves over the SMs, by the tile and the split that are fastest together.

A library has a kernel for each of several output tiles: large ones use tensor cores and L2 best, small ones leave fewer
SMs idle in the last wave. A GEMM of few tiles and a long inner dimension, such as a weight gradient, splits the inner
dimension over SMs (split-K), although partial sums are then written and read once more. Sizes may be numbers, or arrays
of one shape: many GEMMs are evaluated at once.
"""

from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.norms import longer_s

SPLITS = (2, 3, 4, 6, 8)
"""Numbers of parts into which a GEMM may split its inner dimension."""
FEW_WAVES = 4
"""Waves of tiles from which on splitting cannot pay: at most a fifth of them would be saved."""
PARTIAL_SUM_BYTES = 4
"""Partial sums are kept in single precision."""
STEP_BYTES = 128
"""Bytes along the inner dimension that a kernel loads in one step of its pipeline: 64 values of 16 bits."""
FP8_ROWS = 16
"""Multiple of rows that kernels in fp8 load well."""
EVICTION = 8
"""Exponent of the share of operands that L2 still holds over what was touched since: nearly a step."""


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Sizes of a GEMM: `rows` x `inner` times `inner` x `columns`."""

    rows: Array | int
    columns: Array | int
    inner: Array | int
    in_fp8: bool = False
    """Whether the operands have 8 bits instead of 16."""
    written: Array | float = 1.0
    """Bytes of an output that are written, and read where it is added to, over those of 16 bits."""

    @property
    def value_bytes(self) -> int:
        """Bytes of a value of the operands."""
        return 1 if self.in_fp8 else 2


def arithmetic_s(
    gpu: Gpu, shape: GemmShape, frequency_mhz: Array, sm_count: Array, hbm_bytes_per_s: Array | float
) -> Array:
    """Return the tensor-core time of a GEMM by its fastest tile and split.

    Args:
        gpu: GPU that runs it.
        shape: its sizes.
        frequency_mhz: SM clock.
        sm_count: SMs that it runs on.
        hbm_bytes_per_s: achieved HBM bandwidth; partial sums move at L2's, a multiple of it.
    """
    rates = _rates(gpu, shape, frequency_mhz, sm_count)
    times_s = [_by_tile_s(gpu, shape, tile, rates, sm_count, hbm_bytes_per_s) for tile in gpu.gemm_tiles]
    least_s = times_s[0]
    for time_s in times_s[1:]:
        least_s = np.minimum(least_s, time_s)
    return least_s


def resident_share(gpu: Gpu, touched_bytes: Array) -> Array:
    """Return the share of an operand that L2 still holds after `touched_bytes` were read or written since its use."""
    held_bytes = gpu.coefficients.l2_share * gpu.l2_mib * 2**20
    return 1 / (1 + (touched_bytes / held_bytes) ** EVICTION)


@dataclass(frozen=True, slots=True)
class _Rates:
    """What limits a GEMM, whatever its tile and its split."""

    one_sm_flops: Array
    slower: Array
    """Factor by which a clock below the maximum, and rows that fp8 kernels load badly, slow what the clock drives."""
    fed_bytes_per_s: Array | float | None
    """Bytes per second of operands into one SM at the maximum clock; None where nothing limits them."""
    step_s: Array | float | None
    """Least time of a step along the inner dimension at the maximum clock; None where there is none."""


def _rates(gpu: Gpu, shape: GemmShape, frequency_mhz: Array, sm_count: Array) -> _Rates:
    c = gpu.coefficients
    one_sm_flops = gpu.peak_flops(frequency_mhz, np.ones_like(sm_count)) * c.gemm_efficiency
    slower = gpu.maximum_clock_mhz / frequency_mhz
    if shape.in_fp8:
        misaligned = np.where(np.asarray(shape.rows) % FP8_ROWS, c.fp8_misalignment, 1.0)
        one_sm_flops = one_sm_flops * gpu.fp8_speedup * c.fp8_efficiency / misaligned
        slower = slower * misaligned
    step_s = c.fp8_step_s if shape.in_fp8 else c.gemm_step_s
    return _Rates(
        one_sm_flops=one_sm_flops,
        slower=slower,
        fed_bytes_per_s=c.tile_feed_gb_per_s * 1e9 / gpu.sm_count if np.any(c.tile_feed_gb_per_s) else None,
        step_s=step_s if np.any(step_s) else None,
    )


def _by_tile_s(
    gpu: Gpu,
    shape: GemmShape,
    tile: tuple[int, ...],
    rates: _Rates,
    sm_count: Array,
    hbm_bytes_per_s: Array | float,
) -> Array:
    """Time with one tile, split or not."""
    c = gpu.coefficients
    tiles = np.ceil(np.asarray(shape.rows) / tile[0]) * np.ceil(np.asarray(shape.columns) / tile[1])
    least_s = _waves_s(gpu, shape, tile, tiles, 1, rates, sm_count)
    few = tiles < FEW_WAVES * gpu.sm_count
    if not few.any():
        return least_s
    partial_bytes = 2 * PARTIAL_SUM_BYTES * shape.rows * shape.columns
    partial_bytes_per_s = hbm_bytes_per_s * c.l2_speedup
    for parts in SPLITS:
        waves_s = _waves_s(gpu, shape, tile, tiles, parts, rates, sm_count)
        split_s = waves_s + partial_bytes * parts / partial_bytes_per_s + c.gemm_split_s
        least_s = np.where(few, np.minimum(least_s, split_s), least_s)
    return least_s


def _waves_s(
    gpu: Gpu,
    shape: GemmShape,
    tile: tuple[int, ...],
    tiles: Array,
    parts: int,
    rates: _Rates,
    sm_count: Array,
) -> Array:
    """Time of whole waves of tiles, each after its pipeline is filled; what is slower than arithmetic limits it."""
    c = gpu.coefficients
    waves, inner = np.ceil(tiles * parts / sm_count), shape.inner / parts
    values = tile[0] * tile[1]
    busy_s = waves * (2 * values) * (inner + c.gemm_inner_half) / rates.one_sm_flops
    moved_bytes = waves * inner * shape.value_bytes
    if rates.fed_bytes_per_s is not None:
        busy_s = longer_s(busy_s, moved_bytes * sum(tile) / rates.fed_bytes_per_s * rates.slower)
    if rates.step_s is not None:
        busy_s = longer_s(busy_s, moved_bytes / STEP_BYTES * rates.step_s * rates.slower)
    return busy_s + waves * values * c.gemm_epilogue_s * rates.slower * shape.written
