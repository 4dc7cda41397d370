"""Predicting measured kernels by the laws of the GPU model: many rows at once, under the power limit.

What a benchmark does is part of what is predicted. Kernels are repeated back to back, so that operands which fit L2 are
found there, and a run that lasts milliseconds is over before the power limit has pulled the clock down. Both are laws
with coefficients of the GPU; how often a kernel was repeated is the benchmark's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kareus.arrays import Array
from kareus.evidence.kernels.routing import rank_load
from kareus.evidence.kernels.rows import FP8, PRECISIONS, TRTLLM, KernelKind, Kernels
from kareus.gpu_model import attention, gemm, laws, rings
from kareus.gpu_model.energy import Switching, attention_core_j, idle_power_w, product_j_per_flop
from kareus.gpu_model.gpu import MOST_W, Gpu
from kareus.gpu_model.model import limited_cost
from kareus.gpu_model.norms import longer_s
from kareus.gpu_model.overlap import Phase
from kareus.graph.number_formats import FORMATS, SIXTEEN_BITS, Precision

Gpus = Mapping[str, Gpu]
"""GPUs by their option."""

BURST_REPETITIONS = 72
"""Repetitions of a kernel in a run without power: 12 to warm up and 12 timed runs of 6 (AIConfigurator)."""
VLLM_COPIES = 6
"""Weights that vLLM's benchmark of GEMMs takes in turn."""
MOST_TRTLLM_COPIES = 5
"""TRT-LLM's benchmark takes as many as exceed L2, and no more than this."""
NCCL_SM_COUNT = 24
"""SMs that NCCL takes by default within a node, about."""


ROUTED = ("num_tokens", "num_experts", "topk", "moe_ep_size")
"""Sizes that `rank_load` asks for."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions of kernels, each an item for each row."""

    time_s: Array
    power_w: Array
    """Power in the steady state; NaN for collectives."""
    flops: Array
    hbm_bytes: Array

    def put(self, mask: NDArray[np.bool_], part: "Predicted") -> None:
        """Write the predictions of some rows to their places."""
        for name in ("time_s", "power_w", "flops", "hbm_bytes"):
            getattr(self, name)[mask] = getattr(part, name)


def predict(kernels: Kernels, gpus: Gpus) -> Predicted:
    """Return the predictions of all rows; `gpus` has the GPU of each."""
    predicted = Predicted(*(np.full(len(kernels), np.nan) for _ in range(4)))
    limits = np.nan_to_num(kernels.power_limit_w)
    keys = np.array([f"{a} {b} {c} {d}" for a, b, c, d in zip(
        kernels.gpu, kernels.libraries, kernels.number_format, limits, strict=True
    )])  # fmt: skip
    libraries = kernels.libraries
    for key in np.unique(keys):
        mask = keys == key
        first = int(np.argmax(mask))
        gpu = gpus[str(kernels.gpu[first])].with_library(str(libraries[first]))
        if limits[first] > 0:
            gpu = replace(gpu, power_limit_w=float(limits[first]))
        predicted.put(mask, _alike(kernels.where(mask), gpu))
    return predicted


def _alike(rows: Kernels, gpu: Gpu) -> Predicted:
    """Predictions of rows of one GPU, library, number format and power limit."""
    if rows.kind is KernelKind.COLLECTIVE:
        return _collectives(rows, gpu)
    clock_mhz = np.full(len(rows), float(gpu.maximum_clock_mhz))
    work = {KernelKind.GEMM: _gemms, KernelKind.ATTENTION: _attentions, KernelKind.EXPERTS: _experts}[rows.kind]
    fast, slow = work(rows, gpu, clock_mhz), work(rows, gpu, clock_mhz / 2)
    phase = Phase(fast.time_s, slow.time_s / fast.time_s - 1, fast.switching)
    free_s, free_j, _ = limited_cost(replace(gpu, power_limit_w=MOST_W), [phase], clock_mhz)
    held_s, held_j, _ = limited_cost(gpu, [phase], clock_mhz)
    limited = np.where(rows.sustained, 1.0, _limited_share(gpu, free_s))
    time_s = free_s + limited * (held_s - free_s)
    power_w = (free_j + limited * (held_j - free_j)) / time_s
    return Predicted(time_s, power_w, fast.flops, fast.hbm_bytes)


def _limited_share(gpu: Gpu, time_s: Array) -> Array:
    """Share of a burst in which the power limit holds: it takes hold of work that begins with a time constant."""
    limiter_s = gpu.coefficients.limiter_s
    return -np.expm1(-BURST_REPETITIONS * time_s / limiter_s) if limiter_s else np.ones_like(time_s)


@dataclass(frozen=True, slots=True)
class _Work:
    """Kernels at one clock."""

    time_s: Array
    switching: Switching
    flops: Array
    hbm_bytes: Array


def _gemms(rows: Kernels, gpu: Gpu, clock_mhz: Array) -> _Work:
    c, precision = gpu.coefficients, PRECISIONS[rows.number_format[0]]
    m, n, k = (rows.sizes[name].astype(np.float64) for name in ("m", "n", "k"))
    shape = gemm.GemmShape(m, n, k, precision=precision)
    every_sm = np.full_like(clock_mhz, gpu.sm_count)
    bytes_per_s = laws.hbm_bytes_per_s(gpu, every_sm)
    inputs, weights, outputs = shape.value_bytes * m * k, shape.value_bytes * n * k, 2 * m * n
    copies = _copies(rows, gpu)
    once, again = inputs + weights + outputs, inputs + copies * weights + outputs
    resident = gemm.resident_share(gpu, once) * (inputs + outputs) + gemm.resident_share(gpu, again) * weights
    hbm_bytes = once - resident
    memory_s = hbm_bytes / bytes_per_s + resident / (bytes_per_s * c.l2_speedup)
    time_s = longer_s(gemm.arithmetic_s(gpu, shape, clock_mhz, every_sm, bytes_per_s), memory_s) + c.kernel_overhead_s
    flops = 2 * m * n * k
    core_j = flops * product_j_per_flop(gpu, precision)
    if precision is Precision.FP8:
        cast_bytes = 3 * m * k  # values of 16 bits read, of 8 bits written
        moving_s = cast_bytes / (gpu.hbm_gb_per_s * 1e9 * c.cast_efficiency)
        time_s = time_s + c.cast_s + longer_s(c.cast_row_s * m, moving_s)
        hbm_bytes = hbm_bytes + cast_bytes
        waiting_s = c.cast_waiting_share * c.cast_s
        core_j = core_j - waiting_s * (idle_power_w(gpu, clock_mhz) - gpu.blocking_power_w)
    return _Work(time_s, _switching(gpu, core_j, hbm_bytes), flops, hbm_bytes)


def _copies(rows: Kernels, gpu: Gpu) -> Array:
    """Weights that a benchmark of GEMMs takes in turn, so that L2 does not hold them from one to the next.

    Of libraries whose sweep is not known it is taken as vLLM's: those of the A100, from SGLang, are fitted to 5.96 %
    with 1 and with 6.
    """
    if rows.libraries[0] != TRTLLM:
        return np.full(len(rows), float(VLLM_COPIES))
    weight_bytes = (1 if rows.number_format[0] == FP8 else 2) * rows.sizes["n"].astype(np.float64) * rows.sizes["k"]
    return np.clip(np.ceil(gpu.l2_mib * 2**20 / weight_bytes), 1, MOST_TRTLLM_COPIES)


def _attentions(rows: Kernels, gpu: Gpu, clock_mhz: Array) -> _Work:
    c = gpu.coefficients
    size = {name: column.astype(np.float64) for name, column in rows.sizes.items()}
    shape = attention.AttentionShape(
        batch=size["batch"],
        heads=size["heads"],
        keys=size["seq_len"],
        queries=size["seq_len"],
        head_dim=size["head_dim"],
        window=size["window"],
        packed=size["heads"] / size["kv_heads"],
    )
    every_sm = np.full_like(clock_mhz, gpu.sm_count)
    flops = 4 * size["batch"] * size["heads"] * size["head_dim"] * attention.scores(shape)
    hbm_bytes = 2 * size["batch"] * size["seq_len"] * size["head_dim"] * 2 * (size["heads"] + size["kv_heads"])
    arithmetic_s = attention.arithmetic_s(gpu, shape, flops, c.attention_forward_efficiency, clock_mhz, every_sm)
    time_s = longer_s(arithmetic_s, hbm_bytes / laws.hbm_bytes_per_s(gpu, every_sm))
    core_j = attention_core_j(gpu, shape, flops)
    return _Work(time_s + c.attention_s + c.kernel_overhead_s, _switching(gpu, core_j, hbm_bytes), flops, hbm_bytes)


def _experts(rows: Kernels, gpu: Gpu, clock_mhz: Array) -> _Work:
    """The experts of the busiest rank, as vLLM runs them (`fused_moe`): gate and up, activation, down, sum of copies.

    Copies of tokens that belong to other ranks are skipped by the products alone; in fp8 tokens are cast before, and
    copies after the activation.
    """
    c, precision = gpu.coefficients, PRECISIONS[rows.number_format[0]]
    size = {name: column.astype(np.float64) for name, column in rows.sizes.items()}
    routed = zip(*(rows.sizes[name].tolist() for name in ROUTED), rows.routing.tolist(), strict=True)
    loads = [rank_load(*row) for row in routed]
    here = np.array([load.copies for load in loads])
    groups = np.array([float(load.groups) for load in loads])
    hidden, width = size["hidden_size"], size["inter_size"] / size["moe_tp_size"]
    copies = size["num_tokens"] * size["topk"]
    up = GroupedProduct(here, groups, 2 * width, hidden, precision)
    down = GroupedProduct(here, groups, hidden, width, precision)
    even = np.array([load.is_even for load in loads])
    up_s, down_s = (_grouped_s(gpu, product, even, clock_mhz) for product in (up, down))
    moved = SIXTEEN_BITS * (3 * width * copies + hidden * (copies + size["num_tokens"]))
    if precision is not Precision.BF16:
        moved = moved + (SIXTEEN_BITS + 1) * (hidden * size["num_tokens"] + width * copies)
    moving_s = moved / (gpu.hbm_gb_per_s * 1e9 * c.routing_efficiency)
    time_s = up_s + down_s + moving_s + c.routing_copy_s * copies + c.routing_s
    flops = up.flops + down.flops
    hbm_bytes = moved + up.hbm_bytes + down.hbm_bytes
    core_j = flops * product_j_per_flop(gpu, precision, is_grouped=True)
    for product, product_s in ((up, up_s), (down, down_s)):
        loading_s = product_s * (1 - 1 / gemm.misalignment(gpu, product.shape(drawn=False)))
        core_j = core_j + c.single_loads_w * loading_s * clock_mhz / gpu.maximum_clock_mhz
    switching = _switching(gpu, core_j, hbm_bytes + (c.routing_energy_share - 1) * moved)
    return _Work(time_s, switching, flops, hbm_bytes)


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """Products of so many copies of tokens, in groups, by matrices of `inner` x `columns`."""

    copies: Array
    groups: Array
    columns: Array
    inner: Array
    precision: Precision

    @property
    def flops(self) -> Array:
        """Operations of all groups."""
        return 2 * self.copies * self.columns * self.inner

    @property
    def hbm_bytes(self) -> Array:
        """Bytes of tokens, of the matrices of all groups, and of the output in 16 bits."""
        operands = self.inner * (self.copies + self.groups * self.columns)
        return FORMATS[self.precision].value_bytes * operands + SIXTEEN_BITS * self.copies * self.columns

    def shape(self, *, drawn: bool) -> gemm.GemmShape:
        """Sizes of the product of a group."""
        return gemm.GemmShape(
            self.copies / self.groups, self.columns, self.inner, self.precision, groups=self.groups, drawn=drawn
        )


def _grouped_s(gpu: Gpu, product: GroupedProduct, even: NDArray[np.bool_], clock_mhz: Array) -> Array:
    every_sm = np.full_like(clock_mhz, gpu.sm_count)
    bytes_per_s = laws.hbm_bytes_per_s(gpu, every_sm)
    same, scattered = (
        gemm.arithmetic_s(gpu, product.shape(drawn=drawn), clock_mhz, every_sm, bytes_per_s) for drawn in (False, True)
    )
    return (
        longer_s(np.where(even, same, scattered), product.hbm_bytes / bytes_per_s) + gpu.coefficients.kernel_overhead_s
    )


def _switching(gpu: Gpu, core_j: Array, hbm_bytes: Array) -> Switching:
    c = gpu.coefficients
    return Switching(core_j + hbm_bytes * c.hbm_core_j_per_byte, hbm_bytes * c.hbm_j_per_byte)


def _collectives(rows: Kernels, gpu: Gpu) -> Predicted:
    group, message_bytes = rows.sizes["num_gpus"].astype(np.float64), rows.sizes["message_bytes"].astype(np.float64)
    passes = np.where(rows.collective == "all_reduce", 2, 1)
    time_s = rings.ring_time_s(
        gpu,
        bus_bytes=bus_bytes(rows),
        message_bytes=message_bytes,
        group_size=group,
        passes=passes,
        frequency_mhz=np.full(len(rows), float(gpu.maximum_clock_mhz)),
        sm_count=np.full(len(rows), float(NCCL_SM_COUNT)),
    )
    none = np.full(len(rows), np.nan)
    return Predicted(time_s, none, np.zeros(len(rows)), message_bytes)


def bus_bytes(rows: Kernels) -> Array:
    """Return the bytes that a GPU sends over its links: (n - 1) / n of a message, twice that for an all-reduce."""
    group, message_bytes = rows.sizes["num_gpus"], rows.sizes["message_bytes"]
    sent: Array = np.where(rows.collective == "all_reduce", 2, 1) * (group - 1) / group * message_bytes
    return sent
