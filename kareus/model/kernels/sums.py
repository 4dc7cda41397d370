# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Parts that kernels share: options of launches, and sums over the programs of a kernel in a fixed order."""

from collections.abc import Mapping

import triton
import triton.language as tl
from torch import Tensor

SUMMED_ROWS, SUMMED_COLUMNS = 32, 64
"""Tile of the kernel that adds up the sums of programs."""
FMA: Mapping[str, bool] = {"enable_fp_fusion": True}
"""Option of every launch: a product and its sum are rounded once. Versions of Triton have different defaults."""
_ELEMENTS_PER_WARP = 512
"""Sixteen for each of a warp's threads: two loads of 16 bytes of bf16."""
_MOST_WARPS = 16


def warps(elements: int) -> int:
    """Return how many warps run a program that holds so many elements of a row."""
    return min(max(elements // _ELEMENTS_PER_WARP, 1), _MOST_WARPS)


def add_sums(sums: Tensor, first: Tensor, second: Tensor) -> None:
    """Add the rows of `sums[0]` to `first` and, if there is one, those of `sums[1]` to `second`."""
    totals, rows, size = sums.shape
    _add_rows[(triton.cdiv(size, SUMMED_COLUMNS), totals)](
        sums, first, second, rows, size, ROWS=SUMMED_ROWS, COLUMNS=SUMMED_COLUMNS, num_warps=4, **FMA
    )


@triton.jit
def _add_rows(sums, first, second, rows, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < size
    source = sums + tl.program_id(1).to(tl.int64) * rows * size
    summed = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        summed += tl.sum(
            tl.load(source + row * size + column[None, :], mask=(row < rows) & within[None, :], other=0), 0
        )
    if tl.program_id(1) == 0:
        tl.store(first + column, tl.load(first + column, mask=within, other=0) + summed, mask=within)
    else:
        tl.store(second + column, tl.load(second + column, mask=within, other=0) + summed, mask=within)
