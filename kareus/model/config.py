"""The network that is trained and the degrees of parallelism: the records of Hydra groups `model` and `parallelism`."""

from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.names import check_product
from kareus.artifacts.ranges import within
from kareus.errors import ConfigError

MOST_GPUS = 1_000_000
"""Largest number of GPUs of one job."""
MOST_TOKENS = 1_000_000_000
"""Largest number of tokens of one sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """Stretching of rotary position embeddings by Llama 3.1 and later to longer sequences (`rope_type: llama3`)."""

    factor: float
    """Factor by which the slowest frequencies are slowed down."""
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
                f"high_frequency_factor={self.high_frequency_factor}: must be greater than low_frequency_factor "
                f"({self.low_frequency_factor})."
            )


class NormKind(StrEnum):
    """Normalisation before attention, before the MLP and before the LM head."""

    RMSNORM = "rmsnorm"
    """Division by the root of the mean square."""
    LAYERNORM = "layernorm"
    """Subtraction of the mean and division by the standard deviation; with an offset if the model has biases."""


class ActivationKind(StrEnum):
    """Activation inside the MLP."""

    SWIGLU = "swiglu"
    """SiLU of one half of the first product, the gate, times its other half."""
    GELU = "gelu"
    """GELU of the first product, by the error function (MPT)."""
    GELU_TANH = "gelu-tanh"
    """GELU by a hyperbolic tangent (GPT-2, Megatron-LM)."""
    SQUARED_RELU = "squared-relu"
    """Square of what is positive of the first product (Nemotron)."""

    @property
    def gated(self) -> bool:
        """Whether the first product is a gate and what it is multiplied with: twice as wide."""
        return self is ActivationKind.SWIGLU


class PositionKind(StrEnum):
    """How a model knows where a token is."""

    ROPE = "rope"
    """Queries and keys are rotated by angles that grow with the position."""
    LEARNED = "learned"
    """A vector for each position, which is learned, is added to the embedding."""
    ALIBI = "alibi"
    """Scores fall with the distance, in each head at its own rate (Press et al., ICLR 2022)."""


class AttentionKernel(StrEnum):
    """How a framework computes attention."""

    FUSED = "fused"
    """One kernel that keeps scores on the chip (FlashAttention)."""
    UNFUSED = "unfused"
    """Scores of all pairs of tokens are written and read between a matrix product, softmax, and a matrix product."""
    UNFUSED_DROPOUT = "unfused-dropout"
    """Likewise, with a dropout after the softmax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer: norm and attention, then norm and MLP, each added to a residual stream."""

    name: str
    """Name of the model in folders, tables and pages."""
    hidden_size: int
    """Width of the residual stream, in values of a token."""
    intermediate_size: int
    """Width of the MLP inside, in values of a token."""
    num_layers: int
    """Number of transformer blocks."""
    num_attention_heads: int
    """Number of heads of queries."""
    num_key_value_heads: int
    """Number of heads of keys and values; divides `num_attention_heads`."""
    head_dim: int
    """Values of a head."""
    vocab_size: int
    """Number of tokens in the vocabulary."""
    tie_embeddings: bool
    """Whether the LM head shares the embedding's weights."""
    qk_norm: bool
    """Whether queries and keys are normalised per head (Qwen 3)."""
    qkv_bias: bool
    """Whether the QKV projection has a bias (Qwen 2)."""
    norm_epsilon: float
    """Added to the mean square, or to the variance, by every norm."""
    rotary_base: float
    """Base of the frequencies of rotary position embeddings (`rope_theta`); of no meaning with other positions."""
    rotary_scaling: RotaryScaling | None
    """Null where rotary position embeddings are plain."""
    layers_per_stage: dict[int, tuple[int, ...]]
    """Known good splits, by number of pipeline stages; elsewhere the split is computed."""
    norm: NormKind = NormKind.RMSNORM
    """Normalisation before attention, MLP and LM head."""
    activation: ActivationKind = ActivationKind.SWIGLU
    """Activation inside the MLP; it also decides whether the MLP has a gate."""
    positions: PositionKind = PositionKind.ROPE
    """How the model knows where a token is."""
    biases: bool = False
    """Whether every projection but the LM head has a bias, and every LayerNorm an offset."""
    max_positions: int | None = None
    """Rows of the table of learned positions, so the longest sequence; null where positions are not learned."""

    def __post_init__(self) -> None:
        check_product(self.name, "name")
        within(self, 1, 10_000_000, "values", "hidden_size", "intermediate_size", "vocab_size")
        within(self, 1, 10_000, "blocks", "num_layers")
        within(self, 1, 100_000, "heads", "num_attention_heads", "num_key_value_heads")
        within(self, 1, 100_000, "values", "head_dim")
        within(self, 1e-30, 1, "mean square", "norm_epsilon")
        within(self, 1e-3, 1e15, "base", "rotary_base")
        if (self.max_positions is not None) is not (self.positions is PositionKind.LEARNED):
            known = self.max_positions is not None
            expected = f"expected null with positions={self.positions}" if known else "expected a number"
            raise ConfigError(f"max_positions={self.max_positions}: {expected}; learned positions alone have a table.")
        if self.max_positions is not None:
            within(self, 1, MOST_TOKENS, "tokens", "max_positions")
        if self.qk_norm and self.positions is not PositionKind.ROPE:
            raise ConfigError(
                f"qk_norm=true: only with positions=rope, not with {self.positions}, since queries and keys are "
                "normalised where they are rotated; set qk_norm=false."
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads}: must divide num_attention_heads "
                f"({self.num_attention_heads})."
            )

    @property
    def query_width(self) -> int:
        """Values of the queries of a token, over all heads."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Values of the keys of a token, over all heads; there are as many of the values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def mlp_input_width(self) -> int:
        """Values that the first product of the MLP gives for a token: those of the gate too, if it has one."""
        return (2 if self.activation.gated else 1) * self.intermediate_size

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the QKV projection has a bias."""
        return self.qkv_bias or self.biases

    @property
    def has_norm_bias(self) -> bool:
        """Whether norms have an offset."""
        return self.biases and self.norm is NormKind.LAYERNORM


class Sharding(StrEnum):
    """What of the model states data-parallel replicas share out instead of holding it whole (ZeRO, SC 2020)."""

    NONE = "none"
    """Nothing."""
    OPTIMIZER = "optimizer"
    """Master weights and moments of the optimizer (ZeRO stage 1)."""
    GRADIENTS = "gradients"
    """Those and gradients, which are reduce-scattered in every microbatch (ZeRO stage 2)."""
    FULL = "full"
    """Those and weights, which are gathered block by block (ZeRO stage 3, FSDP)."""


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
    sharding: Sharding
    """What of the model states the data-parallel replicas share out among themselves."""
    sequence_parallel: bool = True
    """Whether the GPUs of a tensor-parallel group share the tokens between its matrix products (sequence parallelism):
    an all-gather before and a reduce-scatter after them replace an all-reduce. Resolved to false where tp is 1."""

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
    def token_shards(self) -> int:
        """Parts in which a tensor-parallel group shares the tokens between its matrix products; 1 where it does not."""
        return self.tp if self.sequence_parallel else 1

    @property
    def shards_states(self) -> bool:
        """Whether replicas hold no more than a part of the optimizer's states: each updates a shard of the weights."""
        return self.dp > 1 and self.sharding is not Sharding.NONE

    @property
    def shards_gradients(self) -> bool:
        """Whether replicas hold no more than a part of the gradients."""
        return self.dp > 1 and self.sharding in (Sharding.GRADIENTS, Sharding.FULL)

    @property
    def shards_weights(self) -> bool:
        """Whether replicas hold no more than a part of the weights."""
        return self.dp > 1 and self.sharding is Sharding.FULL

    def halves(self, microbatch_size: int) -> bool:
        """Whether a microbatch can run as two nanobatches: an even one, where blocks hide no collectives of weights."""
        return microbatch_size % 2 == 0 and not self.shards_gradients

    @property
    def gpus_per_stage(self) -> int:
        """GPUs that run one stage, over all replicas."""
        return self.dp * self.cp * self.tp

    def rank(self, stage: int, replica: int = 0, cp: int = 0, tp: int = 0) -> int:
        """Return the rank at a place of the mesh: tensor parallelism varies fastest, then context, data and pipeline.

        That is Megatron-LM's order; it keeps the ranks of a tensor-parallel group on one node.
        """
        return ((stage * self.dp + replica) * self.cp + cp) * self.tp + tp

    @property
    def gpus(self) -> int:
        """All GPUs of the job."""
        return self.pp * self.gpus_per_stage
