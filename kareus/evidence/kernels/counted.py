"""Measured kernels that count, and those whose power was read over so much of the same that it is theirs.

What a row does not say is how it was measured. Four things in the benchmarks of AIConfigurator (`collector/`) move a
row from what a training would see, and the readings of five sweeps show where they tell:

- NVML's power is a mean over the last second, and a run is 3,000 calls or a second. The reading of a short kernel is
  that of the pause before it, and of what ran before that.
- TRT-LLM's benchmark of GEMMs lets eight GPUs take shapes from one queue, with pauses of different length. Those of
  attention make a cache for each shape: of long sequences and small batches that takes longer than the run.
- vLLM's benchmark leaves weights as the memory was. Large ones are mostly zeros, which switch fewer bits and run at a
  higher clock under the power limit.

- Of experts with skewed routing it measures one draw after the other, and readings fall in two heaps: where all experts
  are on one rank, so that the work is the same however it is spread, a fifth of those with the steeper power law are
  about 30 % below the others, which is what pauses between draws would do.

Rows where they tell are left out. Where they do not, the law without any of them is as close: GEMMs of the H200 that
count have an error of power of 2.6 %; with models of the meter, the queue and the zeros all of them had 6.3 %.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.evidence.kernels.routing import BALANCED
from kareus.evidence.kernels.rows import BFLOAT16, TRTLLM, VLLM, KernelKind, Kernels

LEAST_MESSAGE_BYTES = 2**20
"""Smallest message that counts: below, a collective is its latency, and that of a CUDA graph's replay."""
ALL_TO_ALL = "alltoall"
"""Collective that is listed apart: nothing of a dense model's training issues it."""
MOST_WEIGHT_BYTES = 2**30
"""Largest weight that memory which held earlier tensors fills with other values than zeros."""
RESTARTED = {"b200": (2561, 64 * 2**20)}
"""Height of inputs up to which a sweep ran in a new process, and its largest such weight, by option of the GPU."""
LEAST_READ_S = {KernelKind.GEMM: 1 / 6_000, KernelKind.ATTENTION: 1e-3, KernelKind.EXPERTS: 1 / 3_000}
"""Shortest kernel whose reading is its own, chosen on readings: 3,000 calls of it, each of the six weights that a
benchmark of GEMMs takes in turn, would last three seconds."""
LEAST_EXPERTS_W = 200.0
"""Least reading of experts that is theirs: of 628 that are long enough four have 142 to 187 W, about what waiting
takes, and all others 373 W or more."""
LEAST_BATCH, MOST_TOKENS = 16, 8_192
"""Attention whose cache is made in less time than its run takes: sequences, and tokens of each."""


def time_counts(rows: Kernels) -> NDArray[np.bool_]:
    """Return the mask of the rows that count: no small messages, no all-to-alls, no weights that may be zeros."""
    mask: NDArray[np.bool_] = np.ones(len(rows), dtype=bool)
    if rows.kind is KernelKind.COLLECTIVE:
        mask = large_message(rows) & (rows.collective != ALL_TO_ALL)
    elif rows.kind is KernelKind.GEMM:
        mask = ~_may_be_zeros(rows)
    return mask


def large_message(rows: Kernels) -> NDArray[np.bool_]:
    """Return the mask of collectives whose message is large enough to count."""
    mask: NDArray[np.bool_] = rows.sizes["message_bytes"] >= LEAST_MESSAGE_BYTES
    return mask


def power_counts(rows: Kernels) -> NDArray[np.bool_]:
    """Return the mask of the rows whose reading is the power of the kernel; that of collectives alone is not predicted.

    Readings of libraries whose benchmark is not one of the two count: whoever measures repeats a kernel for long.
    """
    if rows.kind is KernelKind.COLLECTIVE:
        return np.zeros(len(rows), dtype=bool)
    libraries = rows.libraries
    long = rows.time_s >= LEAST_READ_S[rows.kind]
    if rows.kind is KernelKind.EXPERTS:
        steady = long & (rows.routing == BALANCED) & (rows.power_w >= LEAST_EXPERTS_W)
    elif rows.kind is KernelKind.GEMM:
        steady = long & (libraries != TRTLLM)
    else:
        steady = long & (rows.sizes["batch"] >= LEAST_BATCH) & (rows.sizes["seq_len"] <= MOST_TOKENS)
    mask: NDArray[np.bool_] = rows.sustained & time_counts(rows) & (steady | ~np.isin(libraries, (VLLM, TRTLLM)))
    return mask


def _may_be_zeros(rows: Kernels) -> NDArray[np.bool_]:
    weight_bytes = 2.0 * rows.sizes["n"] * rows.sizes["k"]
    zeros = weight_bytes > MOST_WEIGHT_BYTES
    for gpu, (height, most_bytes) in RESTARTED.items():
        zeros |= (rows.gpu == gpu) & (rows.sizes["m"] <= height) & (weight_bytes > most_bytes)
    left_as_is: NDArray[np.bool_] = (rows.libraries == VLLM) & (rows.number_format == BFLOAT16)
    return zeros & left_as_is
