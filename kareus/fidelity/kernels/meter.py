"""What a benchmark's power meter shows of a kernel: the mean of readings that each look back over a second.

NVML's power of a GPU is its mean over the last second, and AIConfigurator (`collector/helper.py`) averages such
readings over a run. A run lasts as long as a fixed number of repetitions, a second at the most, so that the reading of
a short kernel shows mostly what was before it. That is not in the files. What the code of the sweeps and their readings
tell of it is here, apart from the laws of the GPU: it concerns the reading of a row, not the power of a kernel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.fidelity.kernels.rows import FP8, KernelKind, Kernels

LOOKS_BACK_S = 1.0
"""Time that a reading is the mean of (NVML on Hopper and later)."""
MOST_RUN_S = 1.1
"""Length of a run that repetitions do not limit: a second, and the rounding of its repetitions."""
GEMM_REPETITIONS = 15_000
"""Kernels that a run of GEMMs has at the most: 3,000 times 5."""
ATTENTION_REPETITIONS = 3_000
SWEEP_HEIGHTS = (
    *(32768, 16384, 8192),
    *(height + odd for height in range(4352, 1023, -256) for odd in (1, 0)),
)
"""Heights of the inputs of TRT-LLM's sweep, from tall to low."""
SWEEPING_GPUS = 8
"""GPUs that take the shapes of a sweep in turn."""
LEAST_BLOCK_SIDE = 128
"""Side of weights from which on vLLM's sweep has a block-scaled variant of a GEMM, which it compiles on the host."""
BLOCK_MULTIPLES = {"b200": 4}
"""Multiple of which the height of a block-scaled GEMM must be, by GPU; 1 elsewhere."""
HOST_LENGTH = 15_000.0
"""Length of sequences for which vLLM's sweep keeps a GPU idle for about as long as a reading looks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Runs whose power was read."""

    rows: Kernels
    time_s: Array
    """Time of one kernel."""
    power_w: Array
    """Power while it runs."""
    idle_w: float
    """Power between runs."""
    overhead_s: float
    """Part of `time_s` that does not grow with the work."""


def reading_w(readings: Readings) -> Array:
    """Return what the meter shows of every run; NaN where nothing was read."""
    rows = readings.rows
    before = _before(readings)
    run_s = _run_s(readings)
    # The mean of what readings over a run share with it: half of a run that is shorter than they look back.
    covered = np.where(run_s < LOOKS_BACK_S, run_s / (2 * LOOKS_BACK_S), 1 - LOOKS_BACK_S / (2 * run_s))
    if rows.kind is KernelKind.GEMM and rows.libraries[0] != "trtllm":
        covered = np.minimum(1.0, run_s / LOOKS_BACK_S)  # the last of a run's readings
    share = before + (1 - before) * covered
    shown = readings.idle_w + (readings.power_w - readings.idle_w) * share
    return np.where(rows.sustained, shown, np.nan)


def _run_s(readings: Readings) -> Array:
    is_gemm = readings.rows.kind is KernelKind.GEMM
    return np.minimum(MOST_RUN_S, (GEMM_REPETITIONS if is_gemm else ATTENTION_REPETITIONS) * readings.time_s)


def _before(readings: Readings) -> Array:
    """Share of a kernel's power above idle that the meter still remembers of the runs before it."""
    rows = readings.rows
    trtllm = rows.libraries[0] == "trtllm"
    if rows.kind is KernelKind.ATTENTION:
        return np.exp(-rows.sizes["seq_len"] / HOST_LENGTH) if not trtllm else np.ones(len(rows))
    if trtllm:
        return _from_queue(readings)
    return np.where(_follows_idleness(rows), 0.0, 0.9)


def _from_queue(readings: Readings) -> Array:
    """TRT-LLM's sweep: for each weight, inputs from tall to low are a queue that eight GPUs share, after a pause.

    A GPU's earlier runs were of taller inputs, and longer in proportion, launches aside.
    """
    height = readings.rows.sizes["m"]
    heights = np.array(SWEEP_HEIGHTS)
    place = np.minimum(np.searchsorted(-heights, -height), len(heights) - 1)
    remembered = np.zeros(len(height))
    for back in range(int(place.max(initial=0)) // SWEEPING_GPUS, 0, -1):
        earlier = np.maximum(place - back * SWEEPING_GPUS, 0)
        time_s = readings.overhead_s + np.maximum(readings.time_s - readings.overhead_s, 0) * heights[earlier] / height
        run_s = np.minimum(MOST_RUN_S, GEMM_REPETITIONS * time_s)
        after = np.clip(remembered * (LOOKS_BACK_S - run_s) + run_s, 0.0, LOOKS_BACK_S)
        remembered = np.where(place >= back * SWEEPING_GPUS, after, remembered)
    return remembered


def _follows_idleness(rows: Kernels) -> NDArray[np.bool_]:
    """Mask of GEMMs before which vLLM's sweep had a block-scaled fp8 GEMM, which leaves the GPU idle."""
    m, n, k = (rows.sizes[name] for name in ("m", "n", "k"))
    multiple = BLOCK_MULTIPLES.get(str(rows.gpu[0]), 1)
    follows: NDArray[np.bool_] = (np.minimum(n, k) >= LEAST_BLOCK_SIDE) & (m % multiple == 0)
    bf16: NDArray[np.bool_] = rows.number_format != FP8
    return follows & bf16
