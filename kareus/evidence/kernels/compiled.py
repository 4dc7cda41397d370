"""Before which GEMMs of a sweep of vLLM a kernel was compiled: the GPU then idles, which the next power reading shows.

For every shape vLLM's sweep runs a GEMM in bf16, then one in fp8 with scales of blocks, by DeepGEMM, which compiles a
kernel for each output width, inner dimension and layout of tiles that it meets for the first time. Shapes come from
tall to low, then from wide to narrow, then from long inner dimensions to short ones, so what was compiled before a
shape follows from DeepGEMM's choice of layouts. Restated here from `csrc/jit_kernels/heuristics` of DeepGEMM as of
April 2026 (MIT licence): layouts that use the least cycles of L1 and L2 on Hopper; few, full waves of clusters on
Blackwell.
"""

import functools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array, Indices

HEIGHTS = (
    *(32768, 16384, 8192),
    *(height + odd for height in range(4352, 1023, -256) for odd in (1, 0)),
)
"""Heights of inputs in the sweeps, from tall to low; those below 1,024 come after all that is scored."""
SIDES = (
    *(65536, 51200, 16384, 12288, 10240, 8192, 7168, 6144, 5120, 4096, 3584, 3072, 2560, 2048, 1536, 1024, 768, 512),
    *(256, 128, 64, 32),
)
"""Widths and inner dimensions of the sweeps, from wide to narrow."""
BLOCK = 128
"""Side of the blocks of weights that share a scale: DeepGEMM takes weights that they divide."""
HOPPER_SMS, BLACKWELL_SMS = 132, 148
SHARED_BYTES = 232448
"""Shared memory of an SM that a kernel may use."""
HOPPER_MULTIPLE, BLACKWELL_MULTIPLE = 1, 4
"""Multiple of which the sweep takes heights of inputs for GEMMs with scales of blocks."""
L2_BYTES_PER_CYCLE = 6153.0
"""8 TB/s at 1.3 GHz."""
L1_BYTES_PER_CYCLE = 128 * HOPPER_SMS
TENSOR_MEMORY_COLUMNS = 512
NARROW_INNER = 256
"""Inner dimension up to which Blackwell's tiles are at most 128 wide."""


def follows_compilation(gpu: str, rows: Indices, columns: Indices, inner: Indices) -> NDArray[np.bool_]:
    """Return the mask of GEMMs of vLLM's sweep on a GPU before which a kernel was compiled; none on unknown GPUs."""
    return _mask(_compiled(gpu), rows, columns, inner)


def follows_blocks(gpu: str, rows: Indices, columns: Indices, inner: Indices) -> NDArray[np.bool_]:
    """Return the mask of GEMMs before which a GEMM with scales of blocks ran."""
    if gpu not in SWEEPS:
        return np.zeros(len(rows), dtype=bool)
    multiple = SWEEPS[gpu][1]
    before = np.array([_longer(int(k)) for k in inner])
    mask: NDArray[np.bool_] = (before >= BLOCK) & (columns >= BLOCK) & (rows % multiple == 0)
    return mask


@functools.cache
def _compiled(gpu: str) -> frozenset[tuple[int, int, int]]:
    """Shapes of the sweep for which DeepGEMM compiles a kernel."""
    if gpu not in SWEEPS:
        return frozenset()
    layout_of, multiple = SWEEPS[gpu]
    sides = [side for side in SIDES if side % BLOCK == 0]
    shapes = [(m, n, k) for m in HEIGHTS if m % multiple == 0 for n in sides for k in sides if n * k < SIDES[0] ** 2]
    layouts = layout_of(*(np.array(column, dtype=np.float64) for column in zip(*shapes, strict=True)))
    known: set[tuple[int, int, int]] = set()
    compiled = []
    for shape, layout in zip(shapes, layouts.tolist(), strict=True):
        kernel = (shape[1], shape[2], layout)
        if kernel not in known:
            known.add(kernel)
            compiled.append(shape)
    return frozenset(compiled)


def _mask(
    compiled: frozenset[tuple[int, int, int]], rows: Indices, columns: Indices, inner: Indices
) -> NDArray[np.bool_]:
    shapes = zip(rows.tolist(), columns.tolist(), inner.tolist(), strict=True)
    return np.array([(m, n, _longer(k)) in compiled for m, n, k in shapes], dtype=bool)


def _longer(inner: int) -> int:
    """The inner dimension that the sweep has before this one; 0 before the longest."""
    longer = [side for side in SIDES if side > inner]
    return longer[-1] if longer else 0


def _hopper_layouts(m: Array, n: Array, k: Array) -> Indices:
    """Index of the layout of each GEMM on an H200: the first of those that take the least cycles."""
    best, found = np.full(len(m), np.inf), np.zeros(len(m), dtype=np.int64)
    clusters = ((1, 1), (1, 2), (2, 1))
    sides = [(bm, bn) for bm in (64, 128, 256) for bn in range(16, 193, 16) if _unrolls(bn) and min(bm, bn) <= BLOCK]
    for index, ((cm, cn), (bm, bn)) in enumerate((c, s) for c in clusters for s in sides):
        scales = np.ceil(k / BLOCK) * 4 * (1 if BLOCK % bn == 0 else 2)
        stages = (SHARED_BYTES - 2 * bm * bn - 256 - scales) // (BLOCK * (bm + bn) + 4 * max(bm, 32))
        tiles = np.ceil(m / bm) * np.ceil(n / bn)
        waves = np.ceil(tiles / HOPPER_SMS)
        from_l2 = (k * (bm // cn + bn // cm) + 2 * bm * bn) * tiles / L2_BYTES_PER_CYCLE
        from_l1 = (2 * k * (bm + bn) + 4 * bm * bn) * tiles / L1_BYTES_PER_CYCLE
        cycles = np.maximum(np.floor(from_l2), np.floor(from_l1)) * waves * HOPPER_SMS / tiles
        few = (stages < 3) | ((bm * bn < 128 * 192) & (stages < 4))  # noqa: PLR2004 - stages that hide a load
        cycles = np.where(few | ((cm * cn > 1) & (waves <= 1)), np.inf, cycles)
        found, best = np.where(cycles < best, index, found), np.minimum(best, cycles)
    return found


def _unrolls(width: int) -> bool:
    """Whether blocks of scales and tiles of a width repeat together."""
    over = width - BLOCK
    return over <= 0 or width % over == 0 or BLOCK % over == 0


def _blackwell_layouts(m: Array, n: Array, k: Array) -> Indices:
    """Index of the layout of each GEMM on a B200: one wave, then clusters of two, few waves, a full last one."""
    best, found = np.full((6, len(m)), np.inf), np.zeros(len(m), dtype=np.int64)
    plain = [(128, bn, cm, 1) for bn in (16, *range(32, 257, 32)) for cm in (1, 2)]
    swapped = [(bm, 128, 1, cn) for bm in range(16, 257, 16) for cn in (1, 2)]
    for index, (bm, bn, cm, cn) in enumerate([*plain, *swapped]):
        accumulator = bn if index < len(plain) else bm
        if (
            2 * accumulator + (_padded(bm) + _padded(bn)) // 32 > TENSOR_MEMORY_COLUMNS
            or (bm // cn) % 8
            or (bn // cm) % 8
        ):
            continue
        down, across = np.ceil(m / bm), np.ceil(n / bn)
        waves = np.ceil(down * across / BLACKWELL_SMS)
        last = (down * across - 1) % BLACKWELL_SMS + 1
        barred = (down % cm > 0) | (across % cn > 0) | ((index < len(plain)) & (bn > BLOCK) & (k <= NARROW_INNER))
        ranks = [waves > 1, -cm * cn, waves, -last, bm + bn, bm * bn]
        own = np.where(barred, np.inf, np.array([np.broadcast_to(r, m.shape) for r in ranks], dtype=np.float64))
        better = _before(own, best)
        found, best = np.where(better, index, found), np.where(better, own, best)
    return found


def _padded(side: int) -> int:
    return -(-side // BLOCK) * BLOCK


def _before(one: Array, other: Array) -> NDArray[np.bool_]:
    """Mask of columns in which `one` comes before `other` in the order of their items."""
    mask = np.zeros(one.shape[1], dtype=bool)
    for a, b in zip(one[::-1], other[::-1], strict=True):
        mask = (a < b) | ((a == b) & mask)
    return mask


SWEEPS: Mapping[str, tuple[Callable[[Array, Array, Array], Indices], int]] = {
    "h200": (_hopper_layouts, HOPPER_MULTIPLE),
    "b200": (_blackwell_layouts, BLACKWELL_MULTIPLE),
}
"""Layouts and multiple of heights, by option of the GPU."""
