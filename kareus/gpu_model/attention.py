"""Time of fused attention: tiles of queries against tiles of keys, on and below the diagonal, inside a window.

A thread block takes a tile of queries of one head and passes over the keys that they attend to; where the diagonal or
the window cuts a tile of keys, the whole tile is computed. Sizes may be numbers, or arrays of one shape.
"""

from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.gpu_model.gpu import Gpu

WIDE_HEAD = 128
"""Width of heads, in values, from which on kernels take other tiles."""
WIDEST_HEAD = 256
"""Widest head that FlashAttention has a kernel for; wider ones run on kernels that are tuned less."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of causal attention."""

    batch: Array | int
    heads: Array | int
    keys: Array | int
    """Length of a sequence of keys; there are as many queries, unless a rank has a part of them."""
    queries: Array | int
    head_dim: Array | int
    window: Array | int = 0
    """Number of keys before a query that it attends to; 0 means all."""


@dataclass(frozen=True, slots=True)
class TileWork:
    """Work of one head, counted in tiles of keys that tiles of queries pass over."""

    query_tiles: Array
    passed: Array
    """Tiles of keys, summed over the tiles of queries."""
    longest: Array
    """Tiles of keys that the last tile of queries passes over."""


def tile_work(shape: AttentionShape, tile: tuple[int, ...]) -> TileWork:
    """Return the work of one head in tiles; the triangle on the diagonal, and a band of constant width with a window.

    A rank that has a part of the queries is counted as having the same part of every row of tiles.
    """
    rows = np.ceil(np.asarray(shape.keys) / tile[0])
    whole = np.ceil(np.asarray(shape.keys) / tile[1])
    band = np.where(np.asarray(shape.window) > 0, np.ceil((np.asarray(shape.window) + tile[0]) / tile[1]), whole)
    longest = np.minimum(band, whole)
    growth = tile[0] / tile[1]
    rising = np.minimum(np.floor(longest / growth), rows)
    passed = growth * rising * (rising + 1) / 2 + (rows - rising) * longest
    part = np.asarray(shape.queries) / np.asarray(shape.keys)
    return TileWork(rows * part, passed * part, longest)


def scores(shape: AttentionShape) -> Array:
    """Return the number of scores of one head that are neither above the diagonal nor before the window."""
    keys, window = np.asarray(shape.keys, dtype=np.float64), np.asarray(shape.window, dtype=np.float64)
    inside = np.where(window > 0, np.minimum(window, keys), keys)
    part = np.asarray(shape.queries) / keys
    return (inside * inside / 2 + (keys - inside) * inside) * part


def arithmetic_s(
    gpu: Gpu,
    shape: AttentionShape,
    flops: Array | float,
    efficiency: Array | float,
    frequency_mhz: Array,
    sm_count: Array,
) -> Array:
    """Return the time of attention's arithmetic, or of its gradient's.

    Args:
        gpu: GPU that runs it.
        shape: its sizes.
        flops: of the scores that `scores` counts; the gradient's are 2.5 times the forward's.
        efficiency: share of the tensor-core peak that it reaches.
        frequency_mhz: SM clock.
        sm_count: SMs that it runs on.
    """
    even_s = flops / (gpu.peak_flops(frequency_mhz, sm_count) * efficiency)
    if not gpu.attention_tile:
        return even_s
    c, work = gpu.coefficients, tile_work(shape, gpu.attention_tile)
    slower, tile_scores = gpu.maximum_clock_mhz / frequency_mhz, gpu.attention_tile[0] * gpu.attention_tile[1]
    heads = np.asarray(shape.batch) * np.asarray(shape.heads)
    wide = c.wide_head_slowdown ** np.clip(np.asarray(shape.head_dim) / WIDE_HEAD - 1, 0.0, 1.0)
    wide = wide * np.where(np.asarray(shape.head_dim) > WIDEST_HEAD, c.widest_head_slowdown, 1.0)
    products_s = even_s * wide * (work.passed * tile_scores / scores(shape))
    one_sm_s = heads * (work.passed * tile_scores * c.softmax_s + work.query_tiles * c.attention_tile_s) * slower
    total_s = products_s + one_sm_s / sm_count
    longest_s = total_s * sm_count / (heads * work.passed) * work.longest
    busy_s: Array = np.maximum(total_s + c.attention_tail * longest_s, longest_s)
    return busy_s
