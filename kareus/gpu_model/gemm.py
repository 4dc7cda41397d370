"""Time of a GEMM's arithmetic: tiles in waves over the SMs, by the tile and the split that are fastest together.

A library has a kernel for each of several output tiles: large ones use tensor cores and L2 best, small ones leave fewer
SMs idle in the last wave. A GEMM of few tiles and a long inner dimension, such as a weight gradient, splits the inner
dimension over SMs (split-K), although partial sums are then written and read once more. Sizes may be numbers, or arrays
of one shape: many GEMMs are evaluated at once, each with all tiles and splits, which have an axis of their own.

Of several groups, such as the experts of a rank, one launch has all products (grouped GEMM). SMs take their tiles one
after the other, so that nothing but the end of all leaves some idle; and the last tile of a group is partly empty.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.gpu_model.coefficients import acts, shape_of
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.norms import longer_s
from kareus.graph.number_formats import FORMATS, Precision, TensorCores

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
LOADED_VALUES = 16
"""Values that Triton's kernels load at once: where rows are no multiple of them long, they load each by itself."""
EVICTION = 8
"""Exponent of the share of operands that L2 still holds over what was touched since: nearly a step."""
NUMBERS_AT_ONCE = 2**13
"""Numbers of an array of tiles and splits: more share NumPy's overhead, fewer fit the cache."""


@dataclass(frozen=True, slots=True)
class GemmShape:
    """Sizes of a GEMM, or of each of several: `rows` x `inner` times `inner` x `columns`."""

    rows: Array | float
    columns: Array | int
    inner: Array | float
    precision: Precision = Precision.BF16
    """Number format of the operands."""
    written: Array | float = 1.0
    """Bytes of an output that are written, and read where it is added to, over those of 16 bits."""
    groups: Array | int = 0
    """Products in one launch, each of these sizes: a grouped GEMM; 0 is a plain one."""
    drawn: bool = False
    """Whether the rows of groups scatter, as routing draws them; `rows` is then their mean."""

    @property
    def value_bytes(self) -> float:
        """Bytes of a value of the operands."""
        return FORMATS[self.precision].value_bytes

    @property
    def units(self) -> TensorCores:
        """Tensor cores that compute it."""
        return FORMATS[self.precision].units

    @property
    def products(self) -> Array | int:
        """Products that it has in all."""
        return np.maximum(self.groups, 1)

    @property
    def is_grouped(self) -> bool:
        """Whether it is a grouped GEMM."""
        return self.groups > 0 if isinstance(self.groups, int | float) else bool((self.groups > 0).any())


def arithmetic_s(
    gpu: Gpu, shape: GemmShape, frequency_mhz: Array, sm_count: Array, hbm_bytes_per_s: Array | float
) -> Array:
    """Return the tensor-core time of a GEMM by its fastest tile and split.

    Args:
        gpu: GPU that runs it; its coefficients may be arrays.
        shape: its sizes.
        frequency_mhz: SM clock.
        sm_count: SMs that it runs on.
        hbm_bytes_per_s: achieved HBM bandwidth; partial sums move at L2's, a multiple of it.

    Returns:
        Array of the shape that sizes, clocks, SMs, bandwidths and coefficients broadcast to.
    """
    sizes = shape.rows, shape.columns, shape.inner, shape.written
    of_gpus = np.empty(shape_of(gpu.coefficients))
    whole = np.broadcast(*sizes, frequency_mhz, sm_count, hbm_bytes_per_s, of_gpus)
    tile_splits = _tile_splits(gpu.gemm_tiles).reshape(3, -1, *(1,) * whole.ndim)
    at_once = max(NUMBERS_AT_ONCE // max(whole.size, 1), 1)
    slower = gpu.maximum_clock_mhz / frequency_mhz
    least_s: Array | float = np.inf
    for start in range(0, tile_splits.shape[1], at_once):
        kernels = _offered(gpu, shape, tile_splits[:, start : start + at_once])
        if kernels.parts.size:
            waves = np.ceil(kernels.tiles * kernels.parts / sm_count)
            if shape.is_grouped:
                waves = np.maximum(kernels.tiles / sm_count, 1.0)
            time_s = waves * _wave_s(gpu, shape, kernels) * slower
            if (kernels.parts > 1).any():
                time_s = time_s + _split_s(gpu, shape, kernels, hbm_bytes_per_s)
            least_s = np.minimum(least_s, time_s.min(axis=0))
    return np.asarray(least_s)


def resident_share(gpu: Gpu, touched_bytes: Array) -> Array:
    """Return the share of an operand that L2 still holds after `touched_bytes` were read or written since its use."""
    held_bytes = gpu.coefficients.l2_share * gpu.l2_mib * 2**20
    return 1 / (1 + (touched_bytes / held_bytes) ** EVICTION)


@dataclass(frozen=True, slots=True)
class _TileSplits:
    """Tiles and splits along a leading axis, before all axes of sizes, clocks and coefficients; parts are 1 unsplit."""

    rows: Array
    columns: Array
    parts: Array
    tiles: Array
    """Tiles of the output, whatever the split."""
    offered: NDArray[np.bool_]
    """Whether it can pay: unsplit, or of few tiles."""


def _offered(gpu: Gpu, shape: GemmShape, tile_splits: Array) -> _TileSplits:
    """Those of `tile_splits` that can pay for any of the sizes."""
    rows, columns, parts = tile_splits
    tiles = shape.products * _row_tiles(shape, rows) * np.ceil(shape.columns / columns)
    offered = (parts == 1) | ((tiles < FEW_WAVES * gpu.sm_count) & (not shape.is_grouped))
    some = offered.any(axis=tuple(range(1, offered.ndim))) | (parts.ravel() == 1)  # of no sizes, too
    return _TileSplits(rows[some], columns[some], parts[some], tiles[some], offered[some])


def _row_tiles(shape: GemmShape, rows: Array) -> Array:
    """Tiles over the rows of a group; of rows that scatter around a mean, the last tile is half empty in the mean."""
    if not shape.drawn:
        return np.ceil(shape.rows / rows)
    return np.maximum(shape.rows / rows + 0.5, np.minimum(shape.rows, 1.0))


@lru_cache
def _tile_splits(tiles: tuple[tuple[int, ...], ...]) -> Array:
    """Rows, columns and parts of every tile with every split, [3, tiles and splits]."""
    return np.array([(*tile, parts) for tile in tiles for parts in (1, *SPLITS)], dtype=np.float64).T


def _wave_s(gpu: Gpu, shape: GemmShape, kernels: _TileSplits) -> Array:
    """Time of a wave of tiles at the maximum clock, after its pipeline is filled: all of it goes as 1/f.

    What is slower than arithmetic limits it: operands that are loaded, or the latency of steps.
    """
    c, rates = gpu.coefficients, _rates(gpu, shape)
    values, inner = kernels.rows * kernels.columns, shape.inner / kernels.parts
    busy_s = 2 * values * (inner + c.gemm_inner_half) / rates.flops_per_s
    moved_bytes = inner * shape.value_bytes
    if acts(c.tile_feed_gb_per_s):
        fed_bytes_per_s = c.tile_feed_gb_per_s * 1e9 / gpu.sm_count
        busy_s = longer_s(busy_s, moved_bytes * (kernels.rows + kernels.columns) / fed_bytes_per_s)
    if acts(rates.step_s):
        busy_s = longer_s(busy_s, moved_bytes / STEP_BYTES * rates.step_s)
    wave_s = busy_s + values * c.gemm_epilogue_s * shape.written
    return wave_s * misalignment(gpu, shape)


@dataclass(frozen=True, slots=True)
class _Rates:
    """What the tensor cores of one SM reach at the maximum clock."""

    flops_per_s: Array | float
    step_s: Array | float
    """Least time of a step along the inner dimension."""


def _rates(gpu: Gpu, shape: GemmShape) -> _Rates:
    """Rates of a format: peaks by data sheets, shares of them and steps by fits.

    Only bf16 and fp8 have been measured; what is not takes the shares and steps of fp8.
    """
    c = gpu.coefficients
    flops_per_s = gpu.peak_flops(float(gpu.maximum_clock_mhz), 1.0) * c.gemm_efficiency * gpu.speedup(shape.units)
    if shape.is_grouped:
        flops_per_s = flops_per_s * c.grouped_efficiency
    if shape.units is TensorCores.BF16:
        return _Rates(flops_per_s, c.grouped_step_s if shape.is_grouped else c.gemm_step_s)
    flops_per_s = flops_per_s * (c.fp4_efficiency if shape.units is TensorCores.FP4 else c.fp8_efficiency)
    if not shape.is_grouped:
        return _Rates(flops_per_s, c.fp8_step_s)
    if shape.precision is Precision.FP8_BLOCKWISE:
        return _Rates(flops_per_s * c.grouped_blockwise_efficiency, c.grouped_blockwise_step_s)
    return _Rates(flops_per_s * c.grouped_fp8_efficiency, c.grouped_fp8_step_s)


def misalignment(gpu: Gpu, shape: GemmShape) -> Array | float:
    """Return the slowdown of sizes that kernels load worse: rows of a GEMM in few bits, long rows of several GEMMs."""
    c, few_bits = gpu.coefficients, shape.units is not TensorCores.BF16
    if shape.is_grouped:
        slower = c.grouped_fp8_misalignment if few_bits else c.grouped_misalignment
        return np.where(np.asarray(shape.inner) % LOADED_VALUES, slower, 1.0) if acts(slower - 1) else 1.0
    if not few_bits:
        return 1.0
    return np.where(np.asarray(shape.rows) % FP8_ROWS, c.fp8_misalignment, 1.0)


def _split_s(gpu: Gpu, shape: GemmShape, kernels: _TileSplits, hbm_bytes_per_s: Array | float) -> Array:
    """Time that a split adds, 0 unsplit: partial sums that move, and a synchronisation. Infinite if not offered."""
    c = gpu.coefficients
    partial_bytes = 2 * PARTIAL_SUM_BYTES * shape.rows * shape.columns * kernels.parts
    split_s = partial_bytes / (hbm_bytes_per_s * c.l2_speedup) + c.gemm_split_s
    return np.where(kernels.offered, (kernels.parts > 1) * split_s, np.inf)
