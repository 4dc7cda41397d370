"""The resolved configuration of a workload: one frozen record for each Hydra group.

Values live in `config/`; these records give them names, units and legal ranges. A record raises
`ConfigError` with the key, the value and the allowed range as soon as it is made.
"""

from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.names import check_product
from kareus.errors import ConfigError
from kareus.workload.gpu import MOST_W, Gpu
from kareus.workload.ranges import check_within, not_negative, positive, share, within

MOST_GPUS = 1_000_000
"""Of one job."""
MOST_TOKENS = 1_000_000_000
"""Of one sequence."""
MOST_S = 1_000_000
"""Of one phase of a measurement: eleven days."""
MOST_CANDIDATES = 100_000
"""Of a search space, to each launch operator, or of a search."""
MOST_PRODUCTS = 2**60
"""Multiplications of a matrix product; tables count twice as many FLOPs in 64 bits."""
MOST_MARGIN = 1000
MOST_PASSES = 100_000
"""Microbatches times stages times chunks. A frontier of 2,560, the largest of the paper, takes half a minute."""
MOST_SEED = 2**63 - 1
"""Largest whole number that files hold."""
MOST_DEADLINES = 1000
"""Plans of a frontier; neighbours of 64 differ by about 1 % in time."""


def check_deadlines(deadlines: int) -> None:
    """Check the number of deadlines of a frontier.

    Raises:
        ConfigError: it lacks an end of the frontier, or is more than anybody can tell apart.
    """
    if deadlines < 2:  # noqa: PLR2004 - both ends of the frontier
        raise ConfigError(f"deadlines={deadlines}: must be 2 or more.")
    check_within("deadlines", deadlines, 2, MOST_DEADLINES, "plans of a frontier")


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How Llama 3.1 and later stretch rotary position embeddings to longer sequences (`rope_type: llama3`)."""

    factor: float
    """By how much the slowest frequencies are slowed down."""
    low_frequency_factor: float
    """Turns within the original length at or below which a frequency is slowed down fully."""
    high_frequency_factor: float
    """Turns within the original length at or above which a frequency is left alone."""
    original_sequence_length: int
    """Longest sequence of pre-training, in tokens."""

    def __post_init__(self) -> None:
        within(self, 1e-3, 1e6, "times", "factor", "low_frequency_factor", "high_frequency_factor")
        within(self, 1, MOST_TOKENS, "tokens", "original_sequence_length")
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigError(
                f"high_frequency_factor={self.high_frequency_factor}: must be above low_frequency_factor "
                f"({self.low_frequency_factor})."
            )


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
    norm_epsilon: float
    """Added to the mean square by every RMSNorm."""
    rotary_base: float
    """Base of the frequencies of rotary position embeddings (`rope_theta`)."""
    rotary_scaling: RotaryScaling | None
    """Null where rotary position embeddings are plain."""
    layers_per_stage: dict[int, tuple[int, ...]]
    """Known good splits, by number of pipeline stages; elsewhere the split is computed."""

    def __post_init__(self) -> None:
        check_product(self.name, "name")
        within(self, 1, 10_000_000, "values", "hidden_size", "intermediate_size", "vocab_size")
        within(self, 1, 10_000, "blocks", "num_layers")
        within(self, 1, 100_000, "heads", "num_attention_heads", "num_key_value_heads")
        within(self, 1, 100_000, "values", "head_dim")
        within(self, 1e-30, 1, "mean square", "norm_epsilon")
        within(self, 1e-3, 1e15, "base", "rotary_base")
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
        within(self, 1, 1_000_000, "GPUs", "dp", "pp", "tp", "cp")
        if self.gpus > MOST_GPUS:
            raise ConfigError(f"dp x pp x tp x cp={self.gpus:,}: must be at most {MOST_GPUS:,} GPUs.")

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


class TestbedKind(StrEnum):
    """Where candidates run."""

    SIMULATED = "simulated"
    CUDA = "cuda"


class CudaCollectives(StrEnum):
    """What a program's collectives are on real GPUs."""

    NCCL = "nccl"
    """Real ones among as many GPUs of this machine as the program's groups have; limited to their SMs."""
    LOOPBACK = "loopback"
    """On one GPU: a kernel on the collective's SMs that moves its bytes through HBM, as links would."""


class ClockPolicy(StrEnum):
    """What is done to the SM clocks of real GPUs."""

    LOCKED = "locked"
    """Locked for every measurement; needs the right to."""
    DEFAULT = "default"
    """Left to the driver; only the maximum clock is planned with."""


class GpuPool(StrEnum):
    """Which real GPUs count as one testbed, whose measurements may be put together."""

    SAME = "same"
    """These very GPUs, by UUID."""
    ALIKE = "alike"
    """Any of this model under this driver: jobs of a cluster measure wherever GPUs are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaConfig:
    """How real GPUs are measured."""

    collectives: CudaCollectives
    clocks: ClockPolicy
    pool: GpuPool


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
    cuda: CudaConfig | None
    """Only where `kind` is `cuda`, and there it must be given."""

    def __post_init__(self) -> None:
        within(self, -100, 200, "degC", "ambient_c")
        within(self, 1e-6, 1000, "s", "counter_period_s")
        within(self, 0, 0.5, "relative standard deviation", "time_noise", "power_noise")
        positive(self, "default_collective_sm_count")
        if (self.kind is TestbedKind.CUDA) != (self.cuda is not None):
            needed = "give collectives, clocks and pool" if self.cuda is None else "must be null"
            raise ConfigError(f"cuda: {needed} where kind is {self.kind}.")


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
        within(self, 1e-3, MOST_S, "s", "window_s")
        within(self, 1e-6, MOST_S, "s", "warmup_s")
        within(self, 0, MOST_S, "s", "cooldown_s", "settle_s")
        within(self, 1e-3, MOST_W, "W", "predecessor_power_w")


class Strategy(StrEnum):
    """How candidates of a partition are chosen."""

    PAPER = "paper"
    RANDOM = "random"
    EXHAUSTIVE = "exhaustive"
    INFORMED = "informed"


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
        within(self, 0, MOST_GPUS, "GPUs", "small_group_below")
        within(self, 1, 100_000, "SMs", "small_group_sm_max", "small_group_sm_stride", "sm_max", "sm_stride")


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
        within(self, 1, MOST_CANDIDATES, "candidates", "initial", "batch")
        within(self, 0, MOST_CANDIDATES, "rounds", "max_rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSearch:
    """Strategy `paper` and its hyperparameters (paper, appendix on MBO hyperparameters), or a yardstick."""

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
        if self.strategy is Strategy.INFORMED:
            raise ConfigError("strategy=informed: has other hyperparameters than these; choose it by search=informed.")
        not_negative(self, "total_energy_share", "dynamic_energy_share", "static_energy_share", "stopping_improvement")
        shares = self.total_energy_share + self.dynamic_energy_share + self.static_energy_share
        if shares > 1:
            raise ConfigError(f"pass shares add up to {shares}: must be at most 1; the rest is exploration.")
        share(self, "bootstrap_fraction")
        within(self, 1, 1000, "surrogates", "ensemble_size")
        within(self, 1, 100, "levels of a tree", "max_depth")
        within(self, 1e-6, 1, "share of a step", "learning_rate")
        within(self, 1, 100_000, "rounds", "boost_rounds", "stopping_window")
        within(self, 0, 1, "share of the hypervolume", "stopping_improvement")
        if self.reference_margin < 1:
            raise ConfigError(f"reference_margin={self.reference_margin}: must be 1 or more, beyond the worst point.")
        within(self, 1, MOST_MARGIN, "times the worst point", "reference_margin")


@dataclass(frozen=True, slots=True, kw_only=True)
class InformedSearch:
    """Strategy `informed` and its hyperparameters (docs/search.md)."""

    strategy: Strategy
    draws: int
    """GPUs imagined: draws of the GPU model's coefficients, which are the prior of the belief."""
    samples: int
    """Joint samples of the belief over which improvements are averaged."""
    plausible: int
    """Most candidates that are sampled in a round."""
    initial: int
    """Candidates of the first round, chosen by the prior alone."""
    batch: int
    """Candidates of a later round."""
    picks: int
    """Candidates that a round picks for what they may add; it looks at or measures them."""
    doubtful: int
    """Looks of a round at the candidates of the least certain time."""
    judged: int
    """Latest looks by which a belief is judged before a search ends: it may be sure and wrong."""
    surprise: float
    """Mean square of their standardised errors above which a search does not end."""
    most_looks: int
    """Looks after which a search only measures; the last round may go beyond it."""
    most: int
    """Candidates after which a search ends in any case."""
    enough: float
    """Share of the hypervolume that all picks of a round are predicted to add, below which a search ends."""
    noise: float
    """Relative standard deviation of one measured time or power."""
    reference_margin: float
    """Reference point of the hypervolume, as a multiple of the frontier's maxima."""

    def __post_init__(self) -> None:
        if self.strategy is not Strategy.INFORMED:
            raise ConfigError(
                f"strategy={self.strategy}: has other hyperparameters than these; choose it by search={self.strategy}."
            )
        within(self, 1, 10_000, "draws", "draws", "samples")
        within(self, 1, MOST_CANDIDATES, "candidates", "plausible", "initial", "batch", "picks", "most")
        within(self, 1, MOST_CANDIDATES, "looks", "judged", "most_looks")
        within(self, 0, MOST_CANDIDATES, "looks", "doubtful")
        within(self, 1e-6, 1e6, "mean square of standardised errors", "surprise")
        within(self, 1e-6, 1, "relative standard deviation", "noise")
        share(self, "enough")
        if self.reference_margin <= 1:
            raise ConfigError(f"reference_margin={self.reference_margin}: must be more than 1, beyond the frontier.")
        within(self, 1, MOST_MARGIN, "times the frontier's maxima", "reference_margin")


SearchConfig = PaperSearch | InformedSearch


class PipelineSchedule(StrEnum):
    """Order of instructions on the stages."""

    ONE_FORWARD_ONE_BACKWARD = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    """1F1B over several chunks of layers on each stage."""
    ZERO_BUBBLE_H1 = "zb-h1"

    @property
    def splits_backward(self) -> bool:
        """Whether a backward is two instructions: input gradients, and weight gradients later."""
        return self is PipelineSchedule.ZERO_BUBBLE_H1


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """The pipeline schedule and the resolution of its frontier."""

    schedule: PipelineSchedule
    chunks: int
    """Parts into which each stage's layers are cut (virtual stages); more than 1 only if interleaved."""
    deadlines: int
    """Deadlines between the fastest and the most frugal iteration for which a plan is made."""

    def __post_init__(self) -> None:
        check_deadlines(self.deadlines)
        within(self, 1, 10_000, "chunks", "chunks")
        interleaves = self.schedule is PipelineSchedule.INTERLEAVED
        if interleaves != (self.chunks > 1):
            raise ConfigError(
                f"chunks={self.chunks}: must be {'2 or more' if interleaves else '1'} with "
                f"schedule={self.schedule}; choose the schedule as a whole, by pipeline=interleaved say."
            )


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
    confirmations: int
    """Further measurements of a whole instruction at each clock that is about as fast as its fastest."""
    seed: int

    @property
    def split_backward(self) -> bool:
        """Whether a backward is two instructions; what the stages before the pipeline see of its schedule."""
        return self.pipeline.schedule.splits_backward

    @property
    def chunks(self) -> int:
        """Chunks of each stage's layers; seen like `split_backward`."""
        return self.pipeline.chunks

    @property
    def gpus_to_measure(self) -> int:
        """GPUs of one machine that a job that measures takes; none on a simulated testbed."""
        if self.testbed.cuda is None:
            return 0
        real = self.testbed.cuda.collectives is CudaCollectives.NCCL
        return self.parallelism.cp * self.parallelism.tp if real else 1

    def __post_init__(self) -> None:
        within(self, 1, 1_000_000, "sequences", "microbatch_size")
        within(self, 1, MOST_PASSES, "microbatches", "num_microbatches")
        within(self, 1, MOST_TOKENS, "tokens", "sequence_length")
        within(self, 0, 1_000_000, "GiB", "memory_reserve_gib")
        within(self, 0, 1_000, "measurements", "confirmations")
        within(self, 0, MOST_SEED, "seed", "seed")
        passes = self.parallelism.pp * self.num_microbatches * self.chunks
        if passes > MOST_PASSES:
            raise ConfigError(
                f"parallelism.pp x num_microbatches x pipeline.chunks={passes:,}: must be at most {MOST_PASSES:,}, the "
                "passes of microbatches through chunks for which an iteration can be planned."
            )
        model = self.model
        width = max(model.intermediate_size, model.vocab_size, model.num_attention_heads * model.head_dim)
        if self.microbatch_size * self.sequence_length * model.hidden_size * width > MOST_PRODUCTS:
            raise ConfigError(
                f"microbatch_size={self.microbatch_size}, sequence_length={self.sequence_length}: with these widths of "
                f"the model a matrix product has more than {MOST_PRODUCTS:g} multiplications; use smaller ones."
            )
        clocks, counts = self.gpu.search_frequencies.clocks_mhz, self.space.sm_max // self.space.sm_stride
        if len(clocks) * counts > MOST_CANDIDATES:
            raise ConfigError(
                f"space.sm_stride={self.space.sm_stride}: gives {counts:,} SM counts for {len(clocks):,} clocks; "
                f"must be at most {MOST_CANDIDATES:,} candidates; use wider strides."
            )
        sm_counts = {
            "space.sm_max": self.space.sm_max,
            "space.small_group_sm_max": self.space.small_group_sm_max,
            "testbed.default_collective_sm_count": self.testbed.default_collective_sm_count,
        }
        for key, sm_count in sm_counts.items():
            if sm_count >= self.gpu.sm_count:
                raise ConfigError(f"{key}={sm_count}: must be less than gpu.sm_count ({self.gpu.sm_count}).")
