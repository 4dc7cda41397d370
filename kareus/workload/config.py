"""The resolved configuration of a workload: one frozen record for each Hydra group.

Values live in `config/`; these records give them names, units and legal ranges. A record raises
`ConfigError` with the key, the value and the allowed range as soon as it is made.
"""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kareus.errors import ConfigError

Numeric = TypeVar("Numeric", float, NDArray[np.float64])
"""One number, or one for each of many candidates."""


def _positive(record: Any, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value <= 0:
            raise ConfigError(f"{name}={value}: must be greater than 0.")


def _share(record: Any, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if not 0 < value <= 1:
            raise ConfigError(f"{name}={value}: must be greater than 0 and at most 1.")


def _not_negative(record: Any, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value < 0:
            raise ConfigError(f"{name}={value}: must be 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer of the Llama/Qwen family: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    name: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_embeddings: bool
    """Whether the LM head shares the embedding's weights."""
    qk_norm: bool
    """Whether queries and keys are normalised per head (Qwen 3)."""
    qkv_bias: bool
    """Whether the QKV projection has a bias (Qwen 2)."""
    layers_per_stage: dict[int, tuple[int, ...]]
    """Known good splits, by number of pipeline stages; elsewhere the split is computed."""

    def __post_init__(self) -> None:
        _positive(self, "hidden_size", "intermediate_size", "num_layers", "num_attention_heads")
        _positive(self, "num_key_value_heads", "head_dim", "vocab_size")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads}: must divide num_attention_heads "
                f"({self.num_attention_heads})."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Degrees of parallelism; their product is the number of GPUs."""

    dp: int
    """Data-parallel replicas of the pipeline."""
    pp: int
    """Pipeline stages."""
    tp: int
    """GPUs that share every layer's weights (tensor parallelism, inside a node)."""
    cp: int
    """GPUs that share every sequence (context parallelism: keys and values are gathered)."""
    layers_per_stage: tuple[int, ...] | None
    """Blocks on each stage; null takes the model's split for `pp`, or computes one. Always set once resolved."""
    shard_optimizer: bool
    """Whether optimizer states are sharded over the data-parallel replicas."""

    def __post_init__(self) -> None:
        _positive(self, "dp", "pp", "tp", "cp")

    @property
    def split(self) -> tuple[int, ...]:
        """Blocks on each stage of a resolved workload.

        Raises:
            ConfigError: it was not resolved.
        """
        if self.layers_per_stage is None:
            raise ConfigError("parallelism.layers_per_stage: null; use a configuration that `kareus resolve` wrote.")
        return self.layers_per_stage

    @property
    def gpus_per_stage(self) -> int:
        """GPUs that run one stage, over all replicas."""
        return self.dp * self.cp * self.tp

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.pp * self.gpus_per_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequencyRange:
    """SM clocks to search, both ends included."""

    minimum_mhz: int
    maximum_mhz: int
    stride_mhz: int

    def __post_init__(self) -> None:
        _positive(self, "minimum_mhz", "stride_mhz")
        if self.maximum_mhz < self.minimum_mhz:
            raise ConfigError(f"maximum_mhz={self.maximum_mhz}: must be at least minimum_mhz ({self.minimum_mhz}).")

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """The clocks, ascending."""
        return tuple(range(self.minimum_mhz, self.maximum_mhz + 1, self.stride_mhz))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCoefficients:
    """Coefficients of the GPU model; the laws that use them are in `kareus/testbed/simulated/`."""

    gemm_efficiency: float
    """Share of peak tensor-core throughput that a large GEMM reaches."""
    gemm_inner_half: float
    """Inner dimension k at which a GEMM reaches half of `gemm_efficiency` (pipeline fill)."""
    attention_forward_efficiency: float
    attention_backward_efficiency: float
    hbm_efficiency: float
    """Share of peak HBM bandwidth that a streaming kernel reaches."""
    hbm_saturating_share: float
    """Share of the SMs that suffices to saturate HBM."""
    bus_efficiency: float
    """Share of link bandwidth that a collective approaches with many SMs, at maximum clock."""
    bus_half_sm_count: float
    """SM count at which a collective reaches half of its bandwidth."""
    bus_clock_share: float
    """Share of a collective's time that scales with 1/f."""
    collective_latency_s: float
    hbm_bytes_per_bus_byte: float
    """HBM traffic that a collective causes, in bytes per byte on its links."""
    contention: float
    """Slowdown of a memory-bound operator and a collective beside each other, beyond sharing bandwidth."""
    crowding: float
    """Slowdown of an operator for the share of SMs that a collective beside it takes, beyond losing them."""
    kernel_overhead_s: float
    """Launch gap and ramp of a kernel."""
    isolation_overhead: float
    """What isolated partitions miss of the blocks of a whole instruction, as a share of their sum."""
    instruction_overhead_s: float
    """Host, pipeline and allocator work around a whole instruction."""
    clock_power_w: float
    """Power of the clock tree at maximum clock and voltage."""
    gemm_j_per_flop: float
    attention_j_per_flop: float
    hbm_j_per_byte: float
    """Part of HBM energy that does not scale with the core's voltage."""
    hbm_core_j_per_byte: float
    """Part that goes with the square of the core's voltage."""
    link_j_per_byte: float
    link_core_j_per_byte: float
    voltage_slope: float
    """Slope of the relative voltage at maximum clock: v = 1 - slope x + curvature x^2, x = 1 - f / f_max."""
    voltage_curvature: float
    voltage_floor: float
    """Relative voltage below the knee."""
    leakage_w_per_c: float
    """Growth of static power with temperature."""
    reference_temperature_c: float
    """Temperature at which the other coefficients hold."""
    thermal_resistance_c_per_w: float
    thermal_time_s: float
    """Time constant of heating and cooling."""
    throttle_share: float
    """Mean power at which bursts reach the power limit and the clock begins to fluctuate, as a share of that limit."""
    throttle_step_mhz: int
    """Distance between the two clocks among which a power-limited GPU alternates."""

    def __post_init__(self) -> None:
        _not_negative(self, *(field.name for field in fields(self)))
        _share(self, "gemm_efficiency", "attention_forward_efficiency", "attention_backward_efficiency")
        _share(self, "hbm_efficiency", "hbm_saturating_share", "bus_efficiency", "voltage_floor", "throttle_share")
        _positive(self, "thermal_resistance_c_per_w", "thermal_time_s", "throttle_step_mhz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """What 90 % of the model's predictions keep to, on workloads that were left out of its fit."""

    time_percent: float
    energy_percent: float

    def __post_init__(self) -> None:
        _positive(self, "time_percent", "energy_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU and the node around it. Sources of the numbers stand beside them in `config/gpu/`."""

    name: str
    sm_count: int
    memory_gib: float
    """Memory that an application can use."""
    bf16_tflops: float
    """Dense tensor-core peak at `maximum_clock_mhz`."""
    hbm_gb_per_s: float
    link_gb_per_s: float
    """Bandwidth of one GPU to the others of its node, in one direction."""
    node_gb_per_s: float
    """Bandwidth of a node to other nodes, in one direction, shared by its GPUs."""
    gpus_per_node: int
    maximum_clock_mhz: int
    power_limit_w: float
    static_power_w: float
    """Power in state P0 doing nothing of note: for the static/dynamic split and the search."""
    blocking_power_w: float
    """Power while waiting on point-to-point: what the pipeline charges for waiting."""
    search_frequencies: FrequencyRange
    """Contains `maximum_clock_mhz`, at which the baselines run."""
    coefficients: GpuCoefficients
    uncertainty: Uncertainty | None
    """Of the GPU model with these coefficients; null where it was not measured."""

    @property
    def throttling_power_w(self) -> float:
        """Mean power above which the clock fluctuates."""
        return self.power_limit_w * self.coefficients.throttle_share

    def peak_flops(self, frequency_mhz: Numeric, sm_count: Numeric) -> Numeric:
        """Dense tensor-core peak of `sm_count` SMs at a clock, in FLOP/s."""
        return self.bf16_tflops * 1e12 * frequency_mhz / self.maximum_clock_mhz * sm_count / self.sm_count

    def whole_instruction(
        self, blocks: tuple[Numeric, Numeric], outer: tuple[Numeric, Numeric]
    ) -> tuple[Numeric, Numeric]:
        """Time and energy of an instruction whose isolated parts add up to `blocks` and, outside them, to `outer`.

        Between the partitions of a block streams synchronise and the host keeps up; what stands outside the blocks is
        a few long kernels, so isolating it misses nothing.
        """
        c = self.coefficients
        scale, fixed_j = 1 + c.isolation_overhead, c.instruction_overhead_s * self.blocking_power_w
        time_s = blocks[0] * scale + outer[0] + c.instruction_overhead_s
        return time_s, blocks[1] * scale + outer[1] + fixed_j

    def __post_init__(self) -> None:
        _positive(self, "sm_count", "memory_gib", "bf16_tflops", "hbm_gb_per_s", "link_gb_per_s", "node_gb_per_s")
        _positive(self, "gpus_per_node", "maximum_clock_mhz", "power_limit_w", "static_power_w", "blocking_power_w")
        if self.search_frequencies.maximum_mhz > self.maximum_clock_mhz:
            raise ConfigError(
                f"search_frequencies.maximum_mhz={self.search_frequencies.maximum_mhz}: must be at most "
                f"maximum_clock_mhz ({self.maximum_clock_mhz})."
            )
        if self.maximum_clock_mhz not in self.search_frequencies.clocks_mhz:
            clocks = self.search_frequencies
            raise ConfigError(
                f"search_frequencies={clocks.minimum_mhz}-{clocks.maximum_mhz} by {clocks.stride_mhz}: must contain "
                f"maximum_clock_mhz ({self.maximum_clock_mhz}), at which the baselines run; set maximum_mhz to "
                f"{self.maximum_clock_mhz} and stride_mhz to a divisor of "
                f"{self.maximum_clock_mhz - clocks.minimum_mhz}."
            )


class TestbedKind(StrEnum):
    """Where candidates run."""

    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedConfig:
    """The testbed and its measuring instruments."""

    kind: TestbedKind
    ambient_c: float
    """Temperature that an idle GPU settles to."""
    counter_period_s: float
    """Update interval of the energy counter (NVML: about 0.1 s)."""
    time_noise: float
    """Relative standard deviation of one measured time."""
    power_noise: float
    """Relative standard deviation of one measured mean power."""
    default_collective_sm_count: int
    """SMs that the default (NCCL) collective takes: sequential execution and default nanobatching."""

    def __post_init__(self) -> None:
        _positive(self, "counter_period_s", "default_collective_sm_count")
        _not_negative(self, "time_noise", "power_noise")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementProtocol:
    """How one number is measured (paper, section 5.3): warm up, cool down, measure over a window."""

    window_s: float
    cooldown_s: float
    warmup_s: float
    """Repetitions before the cooldown, to estimate the time of one."""
    settle_s: float
    """Rest before each reading of the energy counter, longer than its update interval."""
    predecessor_power_w: float
    """Power of the standard predecessor, whose heat the cooldown has to take away."""

    def __post_init__(self) -> None:
        _positive(self, "window_s", "warmup_s", "predecessor_power_w")
        _not_negative(self, "cooldown_s", "settle_s")


class Strategy(StrEnum):
    """How candidates of a partition are chosen."""

    PAPER = "paper"
    RANDOM = "random"
    EXHAUSTIVE = "exhaustive"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpaceConfig:
    """SM counts to search (paper, appendix on MBO hyperparameters); frequencies belong to the GPU."""

    small_group_below: int
    """Groups with fewer GPUs use the `small_group` range."""
    small_group_sm_max: int
    small_group_sm_stride: int
    sm_max: int
    sm_stride: int

    def __post_init__(self) -> None:
        _positive(self, "small_group_sm_max", "small_group_sm_stride", "sm_max", "sm_stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSizes:
    """Budget of a search for one class of partition."""

    initial: int
    """Random candidates measured first (N_init)."""
    max_rounds: int
    """Most rounds after those (B_max)."""
    batch: int
    """Candidates of a round (k)."""

    def __post_init__(self) -> None:
        _positive(self, "initial", "batch")
        _not_negative(self, "max_rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Strategy and hyperparameters (paper, appendix on MBO hyperparameters)."""

    strategy: Strategy
    small: SampleSizes
    """Partitions with one operator."""
    medium: SampleSizes
    """Partitions with two or three operators."""
    large: SampleSizes
    """Partitions with more."""
    total_energy_share: float
    """Share of a batch that the total-energy pass picks; likewise the next two, the rest is exploration."""
    dynamic_energy_share: float
    static_energy_share: float
    ensemble_size: int
    bootstrap_fraction: float
    max_depth: int
    learning_rate: float
    boost_rounds: int
    reference_margin: float
    """Reference point of the hypervolume, as a multiple of the worst observation."""
    stopping_window: int
    """Rounds averaged by the stopping rule (R)."""
    stopping_improvement: float
    """Mean relative improvement of the hypervolume below which a search ends (epsilon)."""

    def __post_init__(self) -> None:
        _not_negative(self, "total_energy_share", "dynamic_energy_share", "static_energy_share", "stopping_improvement")
        shares = self.total_energy_share + self.dynamic_energy_share + self.static_energy_share
        if shares > 1:
            raise ConfigError(f"pass shares add up to {shares}: must be at most 1; the rest is exploration.")
        _share(self, "bootstrap_fraction")
        _positive(self, "ensemble_size", "max_depth", "learning_rate", "boost_rounds", "stopping_window")
        if self.reference_margin < 1:
            raise ConfigError(f"reference_margin={self.reference_margin}: must be 1 or more, beyond the worst point.")


class PipelineSchedule(StrEnum):
    """Order of instructions on the stages."""

    ONE_FORWARD_ONE_BACKWARD = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """The pipeline schedule and the resolution of its frontier."""

    schedule: PipelineSchedule
    deadlines: int
    """Deadlines between the fastest and the most frugal iteration for which a plan is made."""

    def __post_init__(self) -> None:
        if self.deadlines < 2:  # noqa: PLR2004 - both ends of the frontier
            raise ConfigError(f"deadlines={self.deadlines}: must be 2 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that decides what a plan is made for."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    testbed: TestbedConfig
    protocol: MeasurementProtocol
    space: SearchSpaceConfig
    search: SearchConfig
    pipeline: PipelineConfig
    microbatch_size: int
    """Sequences of one microbatch."""
    num_microbatches: int
    """Microbatches of one pipeline in one iteration."""
    sequence_length: int
    """Tokens of a sequence."""
    activation_checkpointing: bool
    """Whether a backward recomputes its forward instead of keeping activations."""
    memory_reserve_gib: float
    """The one calibrated term of the memory estimate: what CUDA, NCCL and fragmentation take."""
    seed: int

    def __post_init__(self) -> None:
        _positive(self, "microbatch_size", "num_microbatches", "sequence_length")
        _not_negative(self, "memory_reserve_gib", "seed")
        sm_counts = {
            "space.sm_max": self.space.sm_max,
            "space.small_group_sm_max": self.space.small_group_sm_max,
            "testbed.default_collective_sm_count": self.testbed.default_collective_sm_count,
        }
        for key, sm_count in sm_counts.items():
            if sm_count >= self.gpu.sm_count:
                raise ConfigError(f"{key}={sm_count}: must be less than gpu.sm_count ({self.gpu.sm_count}).")
