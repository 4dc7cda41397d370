"""The kernel of the loopback communicator, in Triton; imported only on a GPU."""

import triton
import triton.language as tl
from torch import Tensor

from kareus.model.kernels.sums import FMA

BLOCK = 8192
"""Number of elements that a CTA moves at once: eight for each of its threads."""
WARPS = 32
"""Number of warps of a CTA: 1024 threads, as in collective libraries."""


def move(source: Tensor, target: Tensor, sm_count: int, adds: bool) -> None:  # noqa: FBT001 - as Triton takes it
    """Repeat `source` over `target` on `sm_count` CTAs; add to what is there if it `adds`."""
    _move[(sm_count,)](source, target, source.numel(), target.numel(), ADDS=adds, BLOCK=BLOCK, num_warps=WARPS, **FMA)


@triton.jit  # type: ignore[untyped-decorator]
def _move(source, target, source_elements, target_elements, ADDS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    for start in range(tl.program_id(0) * BLOCK, target_elements, tl.num_programs(0) * BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < target_elements
        values = tl.load(source + places % source_elements, mask=inside)
        if ADDS:
            values += tl.load(target + places, mask=inside)
        tl.store(target + places, values, mask=inside)
