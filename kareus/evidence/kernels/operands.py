"""What operands hold that a benchmark does not initialise, and how much less energy their products take.

vLLM's benchmarks make weights and the cache of keys and values without values (`torch.empty`). They then hold what was
in that memory before: values of earlier inputs and outputs where those were as large, and zeros where nothing was.
Zeros switch fewer bits, so that a kernel draws less power, or runs at a higher clock under the power limit. The
constants of this module were chosen on the readings and times of five sweeps. They are the same on all GPUs, but for
one, which is the history of a sweep.
"""

import numpy as np

from kareus.arrays import Array
from kareus.evidence.kernels.compiled import HEIGHTS, SIDES
from kareus.evidence.kernels.rows import FP8, KernelKind, Kernels

UNINITIALISED = "vllm"
"""Library whose benchmarks leave operands as they are; fp8 weights are cast, which writes them."""
ZERO_ENERGY = 0.6
"""Energy of a product with an operand of zeros, as a share of that with random operands."""
HELD_SHARE = 0.4
"""Size of a weight half of which are zeros, over the largest input that the process had made before."""
HELD_SHARPNESS = 2
"""Exponent of that share: a benchmark has six copies of a weight, of which the first take what memory there is."""
RESTARTED_AT = {"b200": 2561}
"""Height of inputs, by option of the GPU, from which on a sweep ran in a process with fresh memory, as its times tell:
below, weights of 64 MiB to 256 MiB and more run fast, above those of more than 1 GiB, on other GPUs the same at all
heights."""
CACHE_BYTES = 8 * 2**20
"""Keys that attention reads, half of which are zeros: the cache begins where small tensors were."""
CACHE_SHARPNESS = 0.5


def switching_share(rows: Kernels) -> Array:
    """Return the energy of each kernel's arithmetic over that with random operands; rows are as in `zero_share`."""
    return 1 - (1 - ZERO_ENERGY) * zero_share(rows)


def zero_share(rows: Kernels) -> Array:
    """Return the share of weights, or of keys and values, that are zeros; rows are of one GPU, library and format."""
    if rows.libraries[0] != UNINITIALISED or rows.number_format[0] == FP8:
        return np.zeros(len(rows))
    if rows.kind is KernelKind.ATTENTION:
        return _share(_bytes(rows, "batch", "seq_len", "kv_heads", "head_dim"), CACHE_BYTES, CACHE_SHARPNESS)
    tallest, restarted_at = float(HEIGHTS[0]), RESTARTED_AT.get(str(rows.gpu[0]), 0)
    height = np.where(rows.sizes["m"] <= restarted_at, restarted_at, tallest)
    return _share(_bytes(rows, "n", "k"), HELD_SHARE * 2 * height * SIDES[0], HELD_SHARPNESS)


def _bytes(rows: Kernels, *sizes: str) -> Array:
    found: Array = 2 * np.prod([rows.sizes[name].astype(np.float64) for name in sizes], axis=0)
    return found


def _share(operand_bytes: Array, held_bytes: Array | float, sharpness: float) -> Array:
    share: Array = 1 / (1 + (held_bytes / operand_bytes) ** sharpness)
    return share
