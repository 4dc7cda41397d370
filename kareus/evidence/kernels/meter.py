"""What a benchmark's power meter shows of a kernel: the mean of readings that each look back over a second.

NVML's power of a GPU is its mean over the last second, and AIConfigurator (`collector/helper.py`) averages such
readings over a run. A run repeats a kernel a fixed number of times, for a second at the most, so that the reading of a
short kernel shows mostly what was before it: the runs of the shapes before it in the sweep, and pauses between them.
What the code of the sweeps tells of that is here, apart from the laws of the GPU: it concerns the reading of a row, not
the power of a kernel. The sweeps are those of vLLM and TRT-LLM; readings of other software are taken as the power of
kernels, since what ran before them is not known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.arrays import Array
from kareus.evidence.kernels.compiled import HEIGHTS, follows_blocks, follows_compilation
from kareus.evidence.kernels.queue import EarlierShapes
from kareus.evidence.kernels.rows import FP8, KernelKind, Kernels

TRTLLM = "trtllm"
SWEEPS = ("vllm", TRTLLM)
"""Libraries with a known sweep."""
LOOKS_BACK_S = 1.0
"""Time that a reading is the mean of (NVML on Hopper and later)."""
READINGS = 8
"""Readings that stand for those of a run."""
MOST_RUN_S = 1.0
"""Length of a run that repetitions do not limit, by the time that kernels took before the power limit took hold."""
MOST_REPLAYS = 3_000
"""Replays of a run at the most."""
VLLM_COPIES = 6
"""Layers that vLLM's benchmark of GEMMs calls in each replay."""
WARM_UPS = 7
"""Calls of all copies right before a run: one to initialise them, three to estimate the time, three replays."""
SETUP_S = 0.01
"""Pause before a run, in which the benchmark makes tensors and captures a graph; this and the next two are chosen on
readings."""
EAGER_S = {"h200": 5e-5, "b200": 1.2e-4}
"""Least time of a GEMM with scales of blocks, which vLLM's benchmark launches from Python; on B200 with one in fp4."""
BLOCK_SLOWDOWN = 1.3
"""Time of such a GEMM, casts included, over that in bf16."""
FIRST_INNER = 65536
"""Longest inner dimension of vLLM's sweep, before which it makes weights of another width."""
SWEEPING_GPUS = 8
"""GPUs that take the shapes of a sweep of TRT-LLM in turn."""
ATTENTION_SETUP_S = {"h200": 0.1}
"""Pause before a run of attention, in which the benchmark makes a layer and its cache, by option of the GPU."""
OTHER_ATTENTION_SETUP_S = 0.05
"""The same on other GPUs. Both are chosen on readings, and so is the next."""
SEQUENCE_S = 5e-4
"""Time in which a benchmark of attention makes each sequence of a batch."""

Earlier = Callable[[Array], Array]
"""Busy time, in seconds at the power of a run, within a number of seconds right before the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """Runs of attention before those that were read."""

    shapes: EarlierShapes
    time_s: Array
    """Time of one kernel."""
    power_w: Array
    """Power while it runs."""
    stretch: Array
    """`time_s` over the time before the power limit took hold."""


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
    launch_s: float
    """Time of launching a kernel."""
    overhead_s: float
    """Part of `time_s` that does not grow with the work: launches."""
    copies: Array
    """Kernels in a replay."""
    weights_s: Array
    """Time of reading the weights of a GEMM in 16 bits from HBM."""
    stretch: Array
    """`time_s` over the time before the power limit took hold."""
    earlier: Sequence[EarlierRuns] = ()
    """What ran before attention on the same GPU, the latest first."""


def reading_w(readings: Readings) -> Array:
    """Return what the meter shows of every run, all of one library; NaN where nothing was read."""
    sustained = readings.rows.sustained
    if readings.rows.libraries[0] not in SWEEPS or not sustained.any():
        return np.where(sustained, readings.power_w, np.nan)
    run_s = _run_s(readings, readings.time_s, readings.copies)
    warm_s = WARM_UPS * readings.copies * readings.time_s
    before = _before(readings, run_s)
    share = np.zeros_like(run_s)
    for place in range(READINGS):
        into_s = run_s * (place + 0.5) / READINGS
        left_s = np.maximum(LOOKS_BACK_S - into_s, 0.0)
        warming_s = np.minimum(left_s, warm_s)
        seen_s = np.minimum(into_s, LOOKS_BACK_S) + warming_s + before(left_s - warming_s)
        share += seen_s / LOOKS_BACK_S / READINGS
    shown = readings.idle_w + (readings.power_w - readings.idle_w) * share
    return np.where(sustained, shown, np.nan)


def _run_s(readings: Readings | EarlierRuns, time_s: Array, copies: Array | int = 1) -> Array:
    return np.minimum(MOST_RUN_S * readings.stretch, MOST_REPLAYS * copies * time_s)


def _before(readings: Readings, run_s: Array) -> Earlier:
    rows = readings.rows
    if rows.kind is KernelKind.ATTENTION:
        return _taken_in_turn(readings)
    if rows.libraries[0] == TRTLLM:
        queued_s, low = _queued_s(readings), _low_share(readings)
        return lambda looked_s: np.minimum(looked_s, queued_s) + low * np.maximum(looked_s - queued_s, 0.0)
    return _swept(readings, run_s)


def _taken_in_turn(readings: Readings) -> Earlier:
    """Busy time before a run of attention: runs of the shapes before it in the queue, and pauses between them.

    Before the runs that are looked at there were others like the earliest of them. Before the first shapes of other
    heads there was nothing to speak of.
    """
    busy: list[tuple[Array, Array, Array]] = []  # seconds before the run at which another ended, its length and power
    setup_s = _attention_setup_s(readings.rows)
    at_s, run_s, power = setup_s, np.zeros_like(setup_s), np.zeros_like(setup_s)
    for earlier in readings.earlier:
        run_s = _run_s(earlier, earlier.time_s) + WARM_UPS * earlier.time_s
        power = (earlier.power_w - readings.idle_w) / (readings.power_w - readings.idle_w) * earlier.shapes.ran
        busy.append((at_s, run_s, power))
        setup_s = _attention_setup_s(earlier.shapes.rows)
        at_s = at_s + run_s + setup_s
    busy.append((at_s, np.full_like(at_s, LOOKS_BACK_S), power * run_s / (run_s + setup_s)))

    def earlier_s(looked_s: Array) -> Array:
        seen_s = np.zeros(looked_s.shape)
        for end_s, length_s, share in busy:
            seen_s += np.clip(looked_s - end_s, 0.0, length_s) * share
        return seen_s

    return earlier_s


def _attention_setup_s(rows: Kernels) -> Array:
    setup_s = ATTENTION_SETUP_S.get(str(rows.gpu[0]), OTHER_ATTENTION_SETUP_S)
    return setup_s + SEQUENCE_S * rows.sizes["batch"].astype(np.float64)


def _swept(readings: Readings, run_s: Array) -> Earlier:
    """Busy time before a GEMM of vLLM's sweep: first one with scales of blocks, then one in fp8 and one in bf16.

    Where a kernel was compiled, nothing ran before it for longer than a reading looks back. The runs before a shape are
    taken to be as long as its own, since their inner dimension is the next longer one.
    """
    rows, time_s = readings.rows, readings.time_s
    gpu, m, n, k = str(rows.gpu[0]), rows.sizes["m"], rows.sizes["n"], rows.sizes["k"]
    after_blocks, paused = follows_blocks(gpu, m, n, k), follows_compilation(gpu, m, n, k)
    first = ~after_blocks & (k >= FIRST_INNER)
    slowest_s = np.maximum(BLOCK_SLOWDOWN * time_s, EAGER_S.get(gpu, 0.0))
    block_s = np.where(after_blocks, np.minimum(MOST_RUN_S, MOST_REPLAYS * slowest_s), 0.0)
    busy = BLOCK_SLOWDOWN * time_s / slowest_s
    steady = (block_s * busy + 2 * run_s) / (block_s + 2 * run_s + 3 * SETUP_S)
    steady = np.where(paused | first, 0.0, steady)

    def earlier_s(looked_s: Array) -> Array:
        rest_s = np.maximum(looked_s - SETUP_S, 0.0)
        beside_s = np.minimum(rest_s, block_s)
        return beside_s * busy + (rest_s - beside_s) * steady

    return earlier_s


def _queued_s(readings: Readings) -> Array:
    """Busy time before a GEMM of TRT-LLM's sweep: for each weight, inputs from tall to low are a queue after a pause.

    Eight GPUs share it, and the one that is free first takes the next. Runs of other heights are as long as this one in
    proportion to the height, launches aside. A height that the sweep does not have counts as the next taller one.
    """
    height, many = readings.rows.sizes["m"], np.arange(len(readings.time_s))
    work_s = np.maximum(readings.time_s - readings.overhead_s, 0)
    free_s, busy_s = np.zeros((len(height), SWEEPING_GPUS)), np.zeros((len(height), SWEEPING_GPUS))
    queued_s = np.zeros(len(height))
    for other in HEIGHTS:
        first = np.argmin(free_s, axis=1)
        queued_s = np.where(height <= other, busy_s[many, first], queued_s)
        run_s = _run_s(readings, readings.overhead_s + work_s * other / height, readings.copies)
        busy_s[many, first] += run_s
        free_s[many, first] += run_s + SETUP_S
    return queued_s


def _low_share(readings: Readings) -> Array:
    """Share of the time before a queue of TRT-LLM's sweep that the GPU is busy; a queue in bf16 follows a pause.

    One in fp8 follows the low inputs of the same weights in bf16, whose runs read weights and are short beside setups.
    """
    if readings.rows.number_format[0] != FP8:
        return np.zeros(len(readings.time_s))
    setup_s = SETUP_S / (MOST_REPLAYS * readings.copies)
    return readings.weights_s / (readings.weights_s + readings.launch_s + setup_s)
