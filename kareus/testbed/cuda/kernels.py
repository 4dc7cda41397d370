"""Triton kernels that move bytes through HBM; imported on CUDA only, since PyTorch for CPUs comes without Triton."""

import triton
import triton.language as tl
from torch import Tensor

THREAD_BLOCKS_PER_SM = 8
"""Thread blocks per SM of a kernel that may use all SMs: enough loads in flight to saturate HBM."""
ELEMENTS_AT_ONCE, WARPS = 2048, 8
"""Elements and warps of a thread block: eight elements for each thread."""


@triton.jit  # type: ignore[untyped-decorator]
def _stream(source, target, reads, writes, TILE: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Read `reads` and write `writes` elements, each thread block striding over tiles of both."""
    tile = tl.arange(0, TILE)
    seen = tl.zeros([TILE], tl.int32)
    for start in range(tl.program_id(0) * TILE, tl.maximum(reads, writes), tl.num_programs(0) * TILE):
        at = start + tile
        value = tl.load(source + at, mask=at < reads, other=0)
        seen |= value
        tl.store(target + at, value, mask=at < writes)
    # Where more is read than written, loads would be optimised away if nothing came of them: this hardly ever stores.
    tl.store(target + tile, seen, mask=(seen == 1) & (tile < writes))


def stream(source: Tensor, target: Tensor, thread_blocks: int) -> None:
    """Read all of `source` and write all of `target`, both flat int32, on that many thread blocks."""
    _stream[(thread_blocks,)](source, target, source.numel(), target.numel(), TILE=ELEMENTS_AT_ONCE, num_warps=WARPS)
