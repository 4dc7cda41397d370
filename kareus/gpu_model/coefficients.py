"""The coefficients of the GPU model, each declared once: name, meaning, unit, range, prior, and prior of a fit.

Validation, the prior of searches (`kareus.search.prior`) and the lists of `kareus fit` (`kareus.evidence`) derive
from these declarations. Searches draw the coefficients in the order of the fields: moving a field changes the data of
the same seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from kareus.artifacts.ranges import not_negative, share, within
from kareus.artifacts.records import ADDED
from kareus.gpu_model.declarations import Coefficient, FitData, FitPrior, TextbookPrior, declaration_of, declared


class LaunchesAhead(StrEnum):
    """The stretch of kernels over which the slower of host and GPU decides; where it ends, both begin anew."""

    STEP = "step"
    """The operators between two collectives."""
    PART = "part"
    """Blocks, and what is before and after them, each by itself: as traces of single parts are put together."""
    PASS = "pass"
    """A whole instruction."""


if TYPE_CHECKING:  # stages that only read a configuration start without numpy
    from kareus.arrays import Array

FRONTIERS, REDUCTIONS = FitData.FRONTIERS, FitData.REDUCTIONS

BENCHMARKS = (
    "large GEMMs reach about 80 % of peak (cuBLAS), fused attention about 60 % forward and less backward "
    "(FlashAttention-2 paper), streaming kernels 85 % of HBM peak, ring collectives 80 % of their links"
)
EAGER_PYTORCH = (
    "an operator of eager PyTorch keeps the host busy for about 10 us, of which the launch itself takes 3 to 5 us"
)
ENERGY_TABLES = (
    "1 to 2 pJ a FLOP in tensor cores and tens of pJ a byte of HBM, by the energy tables of architecture texts"
)
VOLTAGE_TABLES = "voltage falls nearly linearly with the clock to a floor of 70 to 75 %, in published V-f tables"
ASSUMED = "assumed"
LITTLE_EFFECT = "never recalibrated: it shapes a search little"
KERNELS_ONLY = "never recalibrated: only measurements of single kernels tell it; the value is that of a law without it"
NO_SCHEDULE = "never recalibrated: no schedule of a partition depends on overheads of whole instructions, or on heat"


def _of_kernels(unit: str, least: float, most: float, absent: float) -> Mapping[str, Coefficient]:
    """Return the declaration of a coefficient that only fits to measured kernels set.

    With the value `absent` the law is that without the effect.
    """
    return declared(unit, least, most, TextbookPrior(absent, None, KERNELS_ONLY))


def _of_groups(unit: str, least: float, most: float, absent: float) -> Mapping[str, Any]:
    """The same of one that files of GPUs may leave out: of grouped GEMMs, which only the H200 was measured with."""
    return {**_of_kernels(unit, least, most, absent), **ADDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCoefficients:
    """Coefficients of the GPU model; the laws that use them are in `kareus/gpu_model/`."""

    # Each: unit, least, most, TextbookPrior(median, spread, origin), FitPrior(data, value, lower, upper, spread).

    gemm_efficiency: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.8, 0.2, BENCHMARKS), FitPrior(FRONTIERS, 0.95, 0.85, 1.0, 0.1)
        )
    )
    """Share of peak tensor-core throughput that a large GEMM reaches."""
    gemm_inner_half: float = field(metadata=declared("values", 0, 100_000, TextbookPrior(150.0, 1.0, ASSUMED)))
    """Inner dimension k at which a GEMM reaches half of `gemm_efficiency` (pipeline fill)."""
    attention_forward_efficiency: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.6, 0.4, BENCHMARKS), FitPrior(FRONTIERS, 0.65, 0.3, 0.95, 0.2)
        )
    )
    """Share of peak tensor-core throughput that fused attention reaches."""
    attention_backward_efficiency: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.5, 0.4, BENCHMARKS), FitPrior(FRONTIERS, 0.55, 0.3, 0.85, 0.2)
        )
    )
    """Share of peak tensor-core throughput that the gradient of fused attention reaches."""
    hbm_efficiency: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.85, 0.15, BENCHMARKS), FitPrior(FRONTIERS, 0.85, 0.7, 0.93, 0.05)
        )
    )
    """Share of peak HBM bandwidth that a streaming kernel reaches."""
    hbm_saturating_share: float = field(metadata=declared("share", 1e-3, 1, TextbookPrior(0.5, None, LITTLE_EFFECT)))
    """Share of the SMs that suffices to saturate HBM."""
    bus_efficiency: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.8, 0.3, BENCHMARKS), FitPrior(FRONTIERS, 0.85, 0.7, 0.97, 0.1)
        )
    )
    """Share of link bandwidth that a collective approaches with many SMs, at maximum clock."""
    bus_half_sm_count: float = field(
        metadata=declared("SMs", 0, 10_000, TextbookPrior(4.0, 0.7, ASSUMED), FitPrior(REDUCTIONS, 5.5, 1.0, 12.0, 1.0))
    )
    """SM count at which a collective reaches half of its bandwidth."""
    bus_clock_share: float = field(
        metadata=declared("share", 0, 1, TextbookPrior(0.5, 0.7, ASSUMED), FitPrior(FRONTIERS, 0.75, 0.1, 0.86, 0.2))
    )
    """Share of a collective's time that scales with 1/f."""
    hbm_bytes_per_bus_byte: float = field(
        metadata=declared(
            "bytes per byte", 0, 1000, TextbookPrior(2.0, 0.4, ASSUMED), FitPrior(FRONTIERS, 1.6, 1.0, 3.0, 0.3)
        )
    )
    """HBM traffic that a collective causes, in bytes per byte on its links."""
    collective_latency_s: float = field(
        metadata=declared("s", 0, 10, TextbookPrior(5e-5, 1.0, ASSUMED), FitPrior(FRONTIERS, 3e-5, 1.5e-5, 4e-5, 1.0))
    )
    """Time that a collective takes however few bytes it moves."""
    contention: float = field(
        metadata=declared(
            "share of a time", 0, 1000, TextbookPrior(0.3, 1.0, ASSUMED), FitPrior(FRONTIERS, 0.3, 0.01, 3.0, 0.7)
        )
    )
    """Slowdown of a memory-bound operator and a collective beside each other, beyond sharing bandwidth."""
    crowding: float = field(
        metadata=declared(
            "share of a time", 0, 1000, TextbookPrior(0.5, 1.0, ASSUMED), FitPrior(REDUCTIONS, 2.0, 0.1, 12.0, 1.0)
        )
    )
    """Slowdown of an operator for the share of SMs that a collective beside it takes, beyond losing them."""
    kernel_overhead_s: float = field(
        metadata=declared("s", 0, 10, TextbookPrior(1e-5, 1.0, ASSUMED), FitPrior(FRONTIERS, 8e-6, 3e-6, 1e-5, 0.5))
    )
    """Launch gap and ramp of a kernel."""
    host_launch_s: float = field(
        metadata=declared(
            "s", 0, 10, TextbookPrior(1e-5, 1.0, EAGER_PYTORCH), FitPrior(FRONTIERS, 8e-6, 3e-6, 1e-5, 1.0)
        )
    )
    """Time of the host for each kernel; it launches ahead, so it shows where kernels are as short as that."""
    isolation_overhead: float = field(
        metadata=declared(
            "share of a time",
            0,
            1000,
            TextbookPrior(0.0, None, NO_SCHEDULE),
            FitPrior(FRONTIERS, 0.2, 0.03, 0.35, 0.2),
        )
    )
    """What operators of blocks cost within an instruction beyond what they cost alone, as a share of the latter,
    whatever collectives run beside them."""
    instruction_overhead_s: float = field(metadata=declared("s", 0, 10, TextbookPrior(0.0, None, NO_SCHEDULE)))
    """Host, pipeline and allocator work around a whole instruction."""
    clock_power_w: float = field(
        metadata=declared(
            "W", 0, 100_000, TextbookPrior(100.0, 0.5, ENERGY_TABLES), FitPrior(FRONTIERS, 100, 30, 180, 0.2)
        )
    )
    """Power of the clock tree at maximum clock and voltage."""
    gemm_j_per_flop: float = field(
        metadata=declared(
            "J per FLOP",
            0,
            1e-6,
            TextbookPrior(1.0e-12, 0.5, ENERGY_TABLES),
            FitPrior(FRONTIERS, 1.0e-12, 0.2e-12, 2.5e-12, 0.3),
        )
    )
    """Energy of arithmetic in a GEMM at maximum voltage; scales with the square of the core's voltage."""
    attention_j_per_flop: float = field(
        metadata=declared(
            "J per FLOP",
            0,
            1e-6,
            TextbookPrior(1.2e-12, 0.5, ENERGY_TABLES),
            FitPrior(FRONTIERS, 1.3e-12, 0.2e-12, 4e-12, 0.3),
        )
    )
    """Energy of arithmetic in attention and memory-bound operators, likewise."""
    hbm_j_per_byte: float = field(
        metadata=declared(
            "J per byte",
            0,
            1e-3,
            TextbookPrior(50e-12, 0.5, ENERGY_TABLES),
            FitPrior(FRONTIERS, 110e-12, 105e-12, 130e-12, 1.0),
        )
    )
    """Part of HBM energy that does not scale with the core's voltage."""
    hbm_core_j_per_byte: float = field(
        metadata=declared("J per byte", 0, 1e-3, TextbookPrior(20e-12, 0.7, ENERGY_TABLES))
    )
    """Part that goes with the square of the core's voltage."""
    link_j_per_byte: float = field(
        metadata=declared(
            "J per byte",
            0,
            1e-3,
            TextbookPrior(80e-12, 0.7, ENERGY_TABLES),
            FitPrior(FRONTIERS, 60e-12, 5e-12, 200e-12, 0.5),
        )
    )
    """Part of the energy of links that does not scale with the core's voltage."""
    link_core_j_per_byte: float = field(
        metadata=declared(
            "J per byte",
            0,
            1e-3,
            TextbookPrior(30e-12, 0.7, ENERGY_TABLES),
            FitPrior(FRONTIERS, 50e-12, 5e-12, 150e-12, 0.7),
        )
    )
    """Part that goes with the square of the core's voltage."""
    voltage_slope: float = field(
        metadata=declared(
            "relative voltage", 0, 100, TextbookPrior(1.0, 0.4, VOLTAGE_TABLES), FitPrior(FRONTIERS, 1.5, 0.6, 2.6, 0.2)
        )
    )
    """Slope of the relative voltage at maximum clock: v = 1 - slope x + curvature x^2, x = 1 - f / f_max."""
    voltage_curvature: float = field(
        metadata=declared(
            "relative voltage", 0, 100, TextbookPrior(1.0, 0.6, VOLTAGE_TABLES), FitPrior(FRONTIERS, 1.5, 0.3, 6.0, 0.4)
        )
    )
    """Curvature in the same formula."""
    voltage_floor: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.72, 0.1, VOLTAGE_TABLES), FitPrior(FRONTIERS, 0.78, 0.65, 0.9, 0.05)
        )
    )
    """Relative voltage below the knee."""
    leakage_w_per_c: float = field(metadata=declared("W per degC", 0, 1000, TextbookPrior(0.0, None, NO_SCHEDULE)))
    """Growth of static power with temperature."""
    reference_temperature_c: float = field(metadata=declared("degC", 0, 200, TextbookPrior(0.0, None, NO_SCHEDULE)))
    """Temperature at which the other coefficients hold."""
    thermal_resistance_c_per_w: float = field(
        metadata=declared("degC per W", 1e-6, 100, TextbookPrior(1.0, None, NO_SCHEDULE))
    )
    """Rise of temperature over ambient per watt, once settled."""
    thermal_time_s: float = field(metadata=declared("s", 1e-3, 100_000, TextbookPrior(1.0, None, NO_SCHEDULE)))
    """Time constant of heating and cooling."""
    throttle_share: float = field(
        metadata=declared(
            "share", 1e-3, 1, TextbookPrior(0.95, 0.1, ASSUMED), FitPrior(REDUCTIONS, 0.95, 0.8, 1.0, 0.1)
        )
    )
    """Power of a phase of work at which the clock begins to fluctuate, as a share of the power limit."""
    throttle_step_mhz: float = field(
        metadata=declared(
            "MHz", 1e-3, 100_000, TextbookPrior(150.0, None, LITTLE_EFFECT), FitPrior(REDUCTIONS, 300, 60, 900, 1.0)
        )
    )
    """Distance between the two clocks among which a power-limited GPU alternates."""
    gemm_step_s: float = field(metadata=_of_kernels("s", 0, 1e-3, 0.0))
    """Least time of a GEMM's step of 128 bytes along its inner dimension: latency of L2 and of the tensor cores."""
    gemm_epilogue_s: float = field(metadata=_of_kernels("s per value", 0, 1e-6, 0.0))
    """Time in which one SM writes a value of an output tile."""
    tile_feed_gb_per_s: float = field(metadata=_of_kernels("GB/s", 0, 1e12, 0.0))
    """Bandwidth at which all SMs together load operands of tiles from L2; 0 means that it limits nothing."""
    gemm_split_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Time in which a GEMM that splits its inner dimension synchronises its partial sums."""
    l2_speedup: float = field(metadata=_of_kernels("times", 1, 1000, 1.0))
    """Bandwidth of L2 relative to the HBM bandwidth that a streaming kernel reaches."""
    l2_share: float = field(metadata=_of_kernels("share", 1e-3, 1, 0.7))
    """Share of L2 that operands may fill and still be there when they are read again."""
    fp8_energy_share: float = field(metadata=_of_kernels("share", 1e-3, 1, 0.6))
    """Energy of an FLOP in fp8, as a share of that in 16 bits."""
    fp8_efficiency: float = field(metadata=_of_kernels("share", 1e-3, 1, 1.0))
    """Throughput of a large GEMM in fp8, as a share of the tensor cores' multiple of that in 16 bits."""
    fp8_step_s: float = field(metadata=_of_kernels("s", 0, 1e-3, 0.0))
    """As `gemm_step_s`, of a GEMM in fp8: its sums move from the tensor cores' accumulators to wider ones."""
    fp8_misalignment: float = field(metadata=_of_kernels("times", 1, 100, 1.0))
    """Slowdown of a GEMM in fp8 whose rows are no multiple of 16, which its kernels load worse."""
    cast_row_s: float = field(metadata=_of_kernels("s per row", 0, 1e-3, 0.0))
    """Time that casting the input of an fp8 GEMM takes for each row: one thread block after the other."""
    cast_efficiency: float = field(metadata=_of_kernels("share", 1e-3, 1, 0.5))
    """Share of peak HBM bandwidth that casting reaches."""
    cast_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Time that casting takes however small the input."""
    cast_waiting_share: float = field(metadata=_of_kernels("share", 0, 1, 0.0))
    """Share of that in which the GPU waits for a launch, and draws no more than waiting does."""
    attention_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Time of a call of fused attention however small, beyond `kernel_overhead_s`: its scheduling and small kernels."""
    softmax_s: float = field(metadata=_of_kernels("s per score", 0, 1e-6, 0.0))
    """Time in which one SM takes the exponential of a score, as far as matrix products do not hide it."""
    attention_tile_s: float = field(
        metadata=declared(
            "s", 0, 10, TextbookPrior(0.0, None, KERNELS_ONLY), FitPrior(FRONTIERS, 3e-6, 2e-7, 1e-5, 1.0)
        )
    )
    """Time in which one SM starts and ends a tile of queries."""
    attention_tail: float = field(
        metadata=declared(
            "share", 0, 1, TextbookPrior(0.0, None, KERNELS_ONLY), FitPrior(FRONTIERS, 0.3, 0.03, 1.0, 0.5)
        )
    )
    """Time that attention's last tiles leave SMs idle, as a share of the time of its longest tile."""
    attention_step_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Least time in which a tile of queries passes over a tile of keys: latency of the tensor cores and of softmax."""
    attention_split_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Time of joining parts of the keys that idle SMs took for few tiles of queries; 0 where they take none."""
    wide_head_slowdown: float = field(metadata=_of_kernels("times", 0.1, 100, 1.0))
    """Time of attention's FLOPs with heads of 256 values, as a multiple of that with heads of 128."""
    widest_head_slowdown: float = field(metadata=_of_kernels("times", 0.1, 100, 1.0))
    """Slowdown of attention with heads of more than 256 values, which FlashAttention has no kernel for."""
    softmax_j: float = field(metadata=_of_kernels("J per score", 0, 1e-6, 0.0))
    """Energy of a score's exponential and sums in attention at maximum voltage, beside that of matrix products."""
    collective_step_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Latency of one step of a ring, which has a step or two for each other GPU."""
    own_shard_copy: float = field(metadata=_of_kernels("bytes per byte", 0, 100, 0.0))
    """Time of copying a GPU's own shard, relative to sending as many bytes."""
    fast_protocol_latency: float = field(metadata=_of_kernels("share", 1e-3, 1, 1.0))
    """Latency of NCCL's protocol for small messages (LL), as a share of that for large ones (Simple)."""
    fast_protocol_bandwidth: float = field(metadata=_of_kernels("share", 1e-3, 1, 1.0))
    """Bandwidth of NCCL's protocol for small messages (LL), as a share of that for large ones."""
    middle_protocol_latency: float = field(metadata=_of_kernels("share", 1e-3, 1, 1.0))
    """Latency of NCCL's protocol for messages of medium size (LL128), as a share of that for large ones."""
    middle_protocol_bandwidth: float = field(metadata=_of_kernels("share", 1e-3, 1, 1.0))
    """Bandwidth of NCCL's protocol for messages of medium size (LL128), as a share of that for large ones."""
    switch_efficiency: float = field(metadata=_of_kernels("share", 0, 1, 0.0))
    """Share of link bandwidth at which switches reduce (NVLS); 0 where it was not measured."""
    switch_latency_s: float = field(metadata=_of_kernels("s", 0, 10, 0.0))
    """Latency of a reduction in the switches, which is set up for large messages."""
    limiter_s: float = field(metadata=_of_kernels("s", 0, 100, 0.0))
    """Time constant with which the power limit takes hold of work that has just begun."""
    traffic_crowding: float = field(
        metadata=declared(
            "share of a time",
            0,
            1000,
            TextbookPrior(0.0, None, LITTLE_EFFECT),
            FitPrior(REDUCTIONS, 0.1, 0.01, 1.0, 1.0),
        )
    )
    """Slowdown of an operator for the share of link bandwidth that a collective beside it uses: the bytes cross the
    chip, whatever number of SMs moves them. At the upper bound a full link would double the time."""
    collective_sm_w: float = field(
        metadata=declared(
            "W", 0, 1000, TextbookPrior(0.0, None, LITTLE_EFFECT), FitPrior(REDUCTIONS, 1.6, 0.3, 3.1, 0.5)
        )
    )
    """Power of an SM that a collective holds, which polls and copies, at maximum clock and voltage, beyond that of the
    clock tree. An A100 at its limit of 400 W has 3.1 W above `static_power_w` for each of its 108 SMs, the clock tree
    and arithmetic included: hence the bounds."""

    crowding_exponent: float = field(
        metadata=declared(
            "exponent", 0.1, 10, TextbookPrior(1.0, None, LITTLE_EFFECT), FitPrior(REDUCTIONS, 1.5, 0.7, 3.0, 0.5)
        )
    )
    """Crowding grows with this power of the share of SMs that a collective takes: few SMs cost little."""
    stalled_clock_share: float = field(metadata=declared("share", 1e-3, 1, TextbookPrior(1.0, None, LITTLE_EFFECT)))
    """Power of the clock tree while an operator that HBM bounds waits for data, as a share of that at work: idle units
    are gated."""
    streaming_kernels: float = field(
        metadata=declared(
            "kernels", 1, 1000, TextbookPrior(1.0, None, LITTLE_EFFECT), FitPrior(FRONTIERS, 6.0, 1.0, 20.0, 0.6)
        )
    )
    """Kernels in which an operator that HBM bounds runs where nothing fuses it, each with its gap and its launch: a
    norm of eager PyTorch takes about seven (square, mean, sum, root, two products, cast)."""

    host_collective_s: float = field(metadata=declared("s", 0, 10, TextbookPrior(0.0, None, LITTLE_EFFECT)))
    """Further time of the host for each collective: its streams and events, and ranks that come later."""
    traffic: float = field(metadata=declared("times", 1, 1000, TextbookPrior(1.0, None, LITTLE_EFFECT)))
    """Bytes that operators bound by HBM move, over those of kernels that fuse all that can be fused."""
    attention_slowdown: float = field(metadata=declared("times", 0.1, 100, TextbookPrior(1.0, None, LITTLE_EFFECT)))
    """Time of fused attention over that of the library that the efficiencies are of; its power is the same."""
    collective_slowdown: float = field(metadata=declared("times", 0.1, 100, TextbookPrior(1.0, None, LITTLE_EFFECT)))
    """Time of collectives of tensor parallelism over that of the library that the other coefficients are of."""
    warm_leakage_w: float = field(metadata=declared("W", 0, 1000, TextbookPrior(0.0, None, LITTLE_EFFECT)))
    """What a chip leaks beyond `static_power_w` at `reference_temperature_c`, where that is a warm one."""
    host_rank_s: float = field(
        default=0.0, metadata={**declared("s", 0, 10, TextbookPrior(0.0, None, LITTLE_EFFECT)), **ADDED}
    )
    """Further time of the host for a collective of tensor parallelism, for each GPU of its group, in a job whose
    pipeline spans nodes: hosts then serve its messages, too, and all ranks wait for the latest."""
    network_slowdown: float = field(
        default=1.0, metadata={**declared("times", 0.1, 100, TextbookPrior(1.0, None, LITTLE_EFFECT)), **ADDED}
    )
    """Time of bytes between nodes over that of NICs which reach the same share of their bandwidth as links."""
    # Of grouped GEMMs: where a file has none, those of the H200, rounded: the only GPU that they have been measured on.
    grouped_efficiency: float = field(default=0.66, metadata=_of_groups("share", 1e-3, 1, 0.66))
    """Throughput of a large grouped GEMM, as a share of that of one GEMM (`gemm_efficiency`)."""
    grouped_step_s: float = field(default=9e-07, metadata=_of_groups("s", 0, 1e-3, 9e-07))
    """As `gemm_step_s`, of a grouped GEMM."""
    grouped_fp8_efficiency: float = field(default=2.0, metadata=_of_groups("times", 1e-3, 2, 2.0))
    """Throughput of a large grouped GEMM in fp8 over `grouped_efficiency` x `fp8_efficiency` of the peak."""
    grouped_blockwise_efficiency: float = field(default=0.51, metadata=_of_groups("times", 1e-3, 2, 0.51))
    """The same with a scale for each block of values."""
    grouped_blockwise_step_s: float = field(default=1.2e-06, metadata=_of_groups("s", 0, 1e-3, 1.2e-06))
    """The least time of a step of a grouped GEMM with a scale for each block of values."""
    grouped_fp8_step_s: float = field(default=9.5e-07, metadata=_of_groups("s", 0, 1e-3, 9.5e-07))
    """As `fp8_step_s`, of a grouped GEMM."""
    grouped_misalignment: float = field(default=6.1, metadata=_of_groups("times", 1, 100, 6.1))
    """Slowdown of a grouped GEMM whose rows are no multiple of 16 values long."""
    grouped_fp8_misalignment: float = field(default=25.0, metadata=_of_groups("times", 1, 100, 25.0))
    """The same in fp8."""
    single_loads_w: float = field(default=170.0, metadata=_of_groups("W", 0, 1_000, 170.0))
    """Power of loading values by themselves, which is what such a grouped GEMM does for most of its time: as many a
    second in every format, so that it draws what its few products by far would not."""
    grouped_energy_share: float = field(default=1.2, metadata=_of_groups("times", 1e-3, 10, 1.2))
    """Energy of an FLOP of a grouped GEMM, over that of one GEMM in the same format."""
    grouped_fp8_energy_share: float = field(default=0.65, metadata=_of_groups("times", 1e-3, 10, 0.65))
    """The same in fp8 over `grouped_energy_share`."""
    grouped_blockwise_energy_share: float = field(default=1.1, metadata=_of_groups("times", 1e-3, 10, 1.1))
    """The same with a scale for each block of values, which sums in wider registers have to apply."""
    routing_energy_share: float = field(default=2.9, metadata=_of_groups("times", 1e-3, 10, 2.9))
    """Energy of moving copies of tokens over that of HBM for as many bytes: caches and sorting take part."""
    routing_efficiency: float = field(default=0.46, metadata=_of_groups("share", 1e-3, 1, 0.46))
    """Share of peak HBM bandwidth that moving copies of tokens to experts and back reaches, and what experts do between
    their products."""
    routing_copy_s: float = field(default=7.2e-10, metadata=_of_groups("s per copy", 0, 1e-3, 7.2e-10))
    """Time that sorting tokens by experts takes for each copy."""
    routing_s: float = field(default=2.4e-05, metadata=_of_groups("s", 0, 10, 2.4e-05))
    """Time that it takes however few tokens there are."""
    fp4_efficiency: float = field(default=1.0, metadata=_of_groups("share", 1e-3, 1, 1.0))
    """As `fp8_efficiency`, of operands of 4 bits."""
    fp4_energy_share: float = field(default=0.4, metadata=_of_groups("share", 1e-3, 1, 0.4))
    """As `fp8_energy_share`, of operands of 4 bits; not measured on any GPU: as much less as 8 bits take than 16."""

    # Of locked clocks: where a file has none, the law is that without the effect.
    stream_gb_per_s: float = field(default=0.0, metadata={**_of_kernels("GB/s", 0, 1e12, 0.0), **ADDED})
    """Bandwidth of kernels that nothing fuses (`traffic` above 1) through L2 and crossbar at the maximum clock, and in
    proportion to the clock below it; 0 where it was not measured, and limits nothing."""
    core_leakage_w: float = field(default=0.0, metadata={**_of_kernels("W", 0, 1000, 0.0), **ADDED})
    """Leakage of the core at maximum voltage and `reference_temperature_c`; `static_power_w` has it at the least."""
    leakage_exponent: float = field(default=0.0, metadata={**_of_kernels("exponent", 0, 10, 0.0), **ADDED})
    """Power of the core's voltage that leakage goes with; 0 where it was not measured, and is the same at any."""

    def __post_init__(self) -> None:
        not_negative(self, *COEFFICIENTS)
        share(
            self,
            *(name for name, law in COEFFICIENTS.items() if law.is_share and law.least > 0),
        )
        for name, law in COEFFICIENTS.items():
            within(self, law.least, law.most, law.unit, name)


COEFFICIENTS: Mapping[str, Coefficient] = {f.name: declaration_of(f.metadata) for f in fields(GpuCoefficients)}
"""Declarations by name, in the order of the fields."""
OF_SOFTWARE = (
    "host_launch_s",
    "host_collective_s",
    "instruction_overhead_s",
    "isolation_overhead",
    "streaming_kernels",
    "traffic",
    "attention_slowdown",
    "collective_slowdown",
    "host_rank_s",
    "network_slowdown",
)
"""Coefficients that the software sets which drives a GPU, by its own numbers of these names (`kareus.software`)."""
OF_GROUPS = tuple(name for name in COEFFICIENTS if name.startswith(("grouped_", "routing_", "fp4_")))
"""Coefficients of grouped GEMMs, and of products of 4 bits: no other kernel depends on them."""
SHARES = frozenset(name for name, law in COEFFICIENTS.items() if law.is_share)
"""Coefficients that cannot exceed 1."""


def coefficients_of_many(shared: GpuCoefficients, of_each: Mapping[str, "Array"]) -> GpuCoefficients:
    """Return the coefficients of many GPUs, for laws that broadcast; ranges are not checked.

    Args:
        shared: coefficients that all of them have, where `own` has none.
        of_each: coefficients by name, each an array with an axis of GPUs.
    """
    values = {name: getattr(shared, name) for name in COEFFICIENTS} | dict(of_each)
    return cast(GpuCoefficients, SimpleNamespace(**values))


def acts(coefficient: "Array | float") -> bool:
    """Return whether a coefficient is not 0, on any GPU."""
    return bool(coefficient if isinstance(coefficient, int | float) else coefficient.any())


def shape_of(coefficients: GpuCoefficients) -> tuple[int, ...]:
    """Return the shape that the coefficients of many GPUs broadcast to, () of those of one."""
    if isinstance(coefficients, GpuCoefficients):
        return ()
    import numpy as np  # noqa: PLC0415 - stages that only read a configuration start without it

    return np.broadcast_shapes(*{getattr(getattr(coefficients, name), "shape", ()) for name in COEFFICIENTS})
