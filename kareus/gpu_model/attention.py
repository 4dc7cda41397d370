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
NARROW_HEAD = 64
"""Width of heads up to which kernels take tiles of more queries, where registers hold them."""
FEW_TILES = 0.8
"""Tiles of queries for each SM, below which kernels split keys over SMs (FlashAttention 3)."""
SPLITS = (2, 3, 4, 6, 8)
"""Numbers of parts into which they split them."""


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
    packed: Array | int = 1
    """Query heads that share keys and whose queries a kernel packs into one tile."""


@dataclass(frozen=True, slots=True)
class TileWork:
    """Work of one head, counted in tiles of keys that tiles of queries pass over."""

    query_tiles: Array
    passed: Array
    """Tiles of keys, summed over the tiles of queries."""
    longest: Array
    """Tiles of keys that the last tile of queries passes over."""


def tile_work(shape: AttentionShape, tile: tuple[Array | int, Array | int]) -> TileWork:
    """Return the work of one head in tiles; the triangle on the diagonal, and a band of constant width with a window.

    A rank that has a part of the queries is counted as having the same part of every row of tiles. A tile in which
    queries of several heads are packed has fewer of each.
    """
    tall, wide = np.asarray(tile[0]) / np.asarray(shape.packed), np.asarray(tile[1])
    rows = np.ceil(np.asarray(shape.keys) / tall)
    whole = np.ceil(np.asarray(shape.keys) / wide)
    band = np.where(np.asarray(shape.window) > 0, np.ceil((np.asarray(shape.window) + tall) / wide), whole)
    longest = np.minimum(band, whole)
    growth = tall / wide
    rising = np.minimum(np.floor(longest / growth), rows)
    cut = rising * np.maximum(1 - growth, 0.0) / 2  # rows that are shorter than a tile of keys pass over a whole one
    passed = growth * rising * (rising + 1) / 2 + cut + (rows - rising) * longest
    part = np.asarray(shape.queries) / np.asarray(shape.keys) / np.asarray(shape.packed)
    return TileWork(rows * part, passed * part, longest)


def scores(shape: AttentionShape) -> Array:
    """Return the number of scores of one head that are neither above the diagonal nor before the window."""
    keys, window = np.asarray(shape.keys, dtype=np.float64), np.asarray(shape.window, dtype=np.float64)
    inside = np.where(window > 0, np.minimum(window, keys), keys)
    part = np.asarray(shape.queries) / keys
    return (inside * inside / 2 + (keys - inside) * inside) * part


def computed_share(gpu: Gpu, shape: AttentionShape) -> Array | float:
    """Return the scores that kernels compute over those that count: where tiles are cut, whole tiles are computed."""
    if not gpu.attention_tile:
        return 1.0
    tile = tile_of(gpu, shape)
    share: Array = tile_work(shape, tile).passed * tile[0] * tile[1] / scores(shape)
    return share


def tile_of(gpu: Gpu, shape: AttentionShape) -> tuple[Array | int, int]:
    """Return queries and keys of a tile, which must be known of the GPU: tiles of narrow heads may be taller."""
    tall, wide = gpu.attention_tile
    return np.where(np.asarray(shape.head_dim) <= NARROW_HEAD, max(tall, gpu.narrow_head_queries), tall), wide


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
    c, tile = gpu.coefficients, tile_of(gpu, shape)
    work, tile_scores = tile_work(shape, tile), tile[0] * tile[1]
    slower = gpu.maximum_clock_mhz / frequency_mhz
    heads = np.asarray(shape.batch) * np.asarray(shape.heads)
    wide = c.wide_head_slowdown ** np.clip(np.asarray(shape.head_dim) / WIDE_HEAD - 1, 0.0, 1.0)
    wide = wide * np.where(np.asarray(shape.head_dim) > WIDEST_HEAD, c.widest_head_slowdown, 1.0)
    products_s = even_s * wide * (work.passed * tile_scores / scores(shape))
    one_sm_s = heads * (work.passed * tile_scores * c.softmax_s + work.query_tiles * c.attention_tile_s) * slower
    total_s = products_s + one_sm_s / sm_count
    step_s = np.maximum(total_s * sm_count / (heads * work.passed), c.attention_step_s * slower)
    longest_s = _joined_s(gpu, step_s * work.longest, heads * work.query_tiles, sm_count)
    busy_s: Array = np.maximum(total_s + c.attention_tail * longest_s, longest_s)
    return busy_s


def _joined_s(gpu: Gpu, longest_s: Array, tiles: Array, sm_count: Array) -> Array:
    """Time of the longest tile of queries; where tiles are few, SMs take parts of its keys if that pays."""
    split_s = gpu.coefficients.attention_split_s
    if not np.any(split_s):
        return longest_s
    least_s = longest_s
    for parts in SPLITS:
        waves = np.ceil(tiles * parts / sm_count)
        least_s = np.minimum(least_s, longest_s * waves / parts + split_s)
    return np.where(tiles < FEW_TILES * sm_count, least_s, longest_s)
