"""The network that is trained: the record of Hydra group `model`."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from kareus.artifacts.names import check_product
from kareus.artifacts.ranges import check_within, within
from kareus.artifacts.records import ADDED
from kareus.errors import ConfigError
from kareus.model.experts import Experts, LatentAttention
from kareus.model.features import AngleScaling, Branches, NormPlacement, QkNormScope

FAMILIES = {
    **dict.fromkeys(("meta-llama-", "llama-", "llama"), "Llama "),
    **{"qwen": "Qwen", "deepseek-": "DeepSeek-", "gpt-oss-": "gpt-oss ", "gpt": "GPT-"},
    **{"grok-": "Grok-", "mixtral-": "Mixtral ", "mpt-": "MPT ", "nemotron": "Nemotron-"},
}
"""How makers write the beginnings of names of models."""
MOST_BLOCKS = 10_000
"""Largest number of blocks of a model."""
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
        if self.high_frequency_factor < self.low_frequency_factor:
            raise ConfigError(
                f"high_frequency_factor={self.high_frequency_factor}: must be at least low_frequency_factor "
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
    RELU = "relu"
    """What is positive of the first product (OPT)."""
    GEGLU = "geglu"
    """As SwiGLU, with GELU by the error function for SiLU."""
    GEGLU_TANH = "geglu-tanh"
    """As SwiGLU, with GELU by a hyperbolic tangent for SiLU (Gemma)."""

    @property
    def gated(self) -> bool:
        """Whether the first product is a gate and what it is multiplied with: twice as wide."""
        return self in (ActivationKind.SWIGLU, ActivationKind.GEGLU, ActivationKind.GEGLU_TANH)


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
    rotary_scaling: RotaryScaling | AngleScaling | None
    """Null where rotary position embeddings are plain."""
    layers_per_stage: dict[int, tuple[int, ...]] = field(hash=False)
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
    """Positions of the table of learned positions, so the longest sequence; null where positions are not learned."""
    norm_placement: NormPlacement = field(default=NormPlacement.BEFORE, metadata=ADDED)
    """Where the norms of attention and MLP are; the LM head's is before it."""
    branches: Branches = field(default=Branches.SEQUENTIAL, metadata=ADDED)
    """Whether attention and MLP of a block follow each other, or read the same; side by side norms are before them."""
    norm_weight: bool = field(default=True, metadata=ADDED)
    """Whether norms multiply by a weight (not in OLMo 1)."""
    norm_bias: bool | None = field(default=None, metadata=ADDED)
    """Whether LayerNorms have an offset; null: where `biases` is set."""
    projection_bias: bool | None = field(default=None, metadata=ADDED)
    """Whether attention's output projection has a bias; null: where `biases` is set."""
    mlp_bias: bool | None = field(default=None, metadata=ADDED)
    """Whether the products of the MLP have biases; null: where `biases` is set."""
    head_bias: bool = field(default=False, metadata=ADDED)
    """Whether the LM head has a bias (Phi, GPT-J)."""
    embedding_norm: bool = field(default=False, metadata=ADDED)
    """Whether embeddings are normalised before the first block (Bloom)."""
    qk_norm_scope: QkNormScope = field(default=QkNormScope.HEAD, metadata=ADDED)
    """What norms of queries and keys see at once; of meaning with `qk_norm`."""
    rotary_share: float = field(default=1.0, metadata=ADDED)
    """Share of the values of a head that rotate."""
    unrotated_layers: tuple[int, ...] = field(default=(), metadata=ADDED)
    """Blocks, from 0, whose queries and keys do not rotate (SmolLM 3)."""
    window_tokens: int | None = field(default=None, metadata=ADDED)
    """Tokens back to which a token attends, itself among them; null: all."""
    windowed_layers: tuple[int, ...] | None = field(default=None, metadata=ADDED)
    """Blocks, from 0, that the window is for; null: all."""
    chunked_windows: bool = field(default=False, metadata=ADDED)
    """Whether sequences are cut in chunks of `window_tokens`, and a token attends to those of its chunk that came
    before it (Llama 4); else the window moves on with each token."""
    window_rotary_base: float | None = field(default=None, metadata=ADDED)
    """`rotary_base` of blocks with a window, where it is another (Gemma 3); null: the same."""
    attention_scale: float | None = field(default=None, metadata=ADDED)
    """What scores are multiplied by; null: 1 over the root of `head_dim`."""
    attention_softcap: float | None = field(default=None, metadata=ADDED)
    """Bound of scores, which a hyperbolic tangent keeps (Gemma 2); null: none."""
    logit_softcap: float | None = field(default=None, metadata=ADDED)
    """Likewise of logits."""
    embedding_scale: float = field(default=1.0, metadata=ADDED)
    """What embeddings are multiplied by (Gemma, Granite)."""
    residual_scale: float = field(default=1.0, metadata=ADDED)
    """What the outputs of attention and MLP are multiplied by before they are added (Granite, MiniCPM)."""
    logit_scale: float = field(default=1.0, metadata=ADDED)
    """What logits are multiplied by (Cohere, Granite, MiniCPM)."""
    position_offset: int = field(default=0, metadata=ADDED)
    """Rows of the table of learned positions before that of position 0 (OPT: 2)."""
    attention_sinks: bool = field(default=False, metadata=ADDED)
    """Whether each head has a learned score that no token belongs to (gpt-oss)."""
    experts: Experts | None = field(default=None, metadata=ADDED)
    """Experts in the place of the MLP of blocks; null: none. `intermediate_size` is then the width of the MLP of blocks
    without experts, or, where all have experts, of one of these."""
    latent_attention: LatentAttention | None = field(default=None, metadata=ADDED)
    """Queries, keys and values from latent vectors; null: from the residual stream."""
    mtp_layers: int = field(default=0, metadata=ADDED)
    """Blocks after the last, each of which predicts a further token from what the one before it gave and the token's
    embedding, by the LM head of the others (multi-token prediction; DeepSeek-V3, section 2.2). They are where the LM
    head is, and as the last block is."""
    checkpoint: str | None = field(default=None, metadata=ADDED)
    """`model_type` of the checkpoints that name its weights; null: Llama, or GPT-2 or MPT by `positions`."""

    def __post_init__(self) -> None:
        check_product(self.name, "name")
        within(self, 1, 10_000_000, "values", "hidden_size", "intermediate_size", "vocab_size")
        within(self, 1, MOST_BLOCKS, "blocks", "num_layers")
        within(self, 1, 100_000, "heads", "num_attention_heads", "num_key_value_heads")
        within(self, 1, 100_000, "values", "head_dim")
        within(self, 1e-30, 1, "mean square", "norm_epsilon")
        within(self, 1e-3, 1e15, "base", "rotary_base")
        if (self.max_positions is not None) is not (self.positions is PositionKind.LEARNED):
            given = self.max_positions is not None
            expected = f"expected null with positions={self.positions}" if given else "expected a number"
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
        self._check_features()

    def _check_features(self) -> None:
        """Check the fields that tell the block apart from Llama's."""
        if self.branches.parallel and self.norm_placement is not NormPlacement.BEFORE:
            raise ConfigError(
                f"norm_placement={self.norm_placement}: expected before with branches={self.branches}, whose attention "
                "and MLP read what a norm gives."
            )
        within(self, 1e-6, 1, "share of a head", "rotary_share")
        within(self, 0, 1_000, "rows", "position_offset")
        within(self, 1e-9, 1e9, "times", "embedding_scale", "residual_scale", "logit_scale")
        for name in ("attention_scale", "attention_softcap", "logit_softcap", "window_rotary_base", "window_tokens"):
            if (value := getattr(self, name)) is not None:
                check_within(name, value, 1e-9, 1e15, "null or a positive number")
        named = {
            "unrotated_layers": self.unrotated_layers,
            "windowed_layers": self.windowed_layers,
            "experts.dense_layers": self.dense_layers,
        }
        for name, layers in named.items():
            for layer in layers or ():
                if not 0 <= layer < self.num_layers:
                    raise ConfigError(f"{name}: has {layer}; expected numbers of blocks, 0 to {self.num_layers - 1}.")
        within(self, 0, MOST_BLOCKS, "blocks", "mtp_layers")
        self._check_experts()

    def _check_experts(self) -> None:
        """Check what experts and latent attention exclude."""
        if self.experts is not None and len(set(self.dense_layers)) == self.num_layers:
            raise ConfigError("experts.dense_layers: has all blocks; set experts=null for a dense model.")
        if self.experts is not None and self.branches.parallel:
            raise ConfigError(
                f"experts: expected branches=sequential, not {self.branches}, with a router after attention."
            )
        latent = self.latent_attention
        if latent is None:
            return
        if latent.rotary_dim >= self.head_dim:
            raise ConfigError(
                f"latent_attention.rotary_dim={latent.rotary_dim}: must be less than head_dim ({self.head_dim}), which "
                "has the values that rotate and those that do not."
            )
        if self.num_key_value_heads != self.num_attention_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads}: must be num_attention_heads "
                f"({self.num_attention_heads}) with latent_attention, which gives each head keys of its own."
            )

    @property
    def rotary_dim(self) -> int:
        """Values of a head that rotate, an even number."""
        return int(self.head_dim * self.rotary_share) // 2 * 2

    @property
    def block_norms(self) -> int:
        """Norms of a block, of different weights."""
        if self.branches is Branches.PARALLEL_ONE_NORM:
            return 1
        return 4 if self.norm_placement is NormPlacement.AROUND else 2

    @property
    def norm_parameters(self) -> int:
        """Weights and offsets of one norm over the residual stream."""
        return self.hidden_size * (self.norm_weight + self.has_norm_bias)

    @property
    def qk_norm_parameters(self) -> tuple[int, int]:
        """Weights of the norms of queries and keys of a block: those of all heads alike, and those of each its own."""
        if not self.qk_norm or self.qk_norm_scope is QkNormScope.UNWEIGHTED:
            return 0, 0
        if self.qk_norm_scope is QkNormScope.HEAD:
            return 2 * self.head_dim, 0
        return 0, self.query_width + self.key_value_width

    def layer_windows(self, sequence_length: int) -> tuple[int, ...]:
        """Return the tokens to which the last token of a sequence attends, in each block."""
        window = min(self.window_tokens or sequence_length, sequence_length)
        windowed = range(self.num_layers) if self.windowed_layers is None else self.windowed_layers
        return tuple(window if layer in windowed else sequence_length for layer in range(self.num_layers))

    def twice_pairs(self, sequence_length: int) -> tuple[int, ...]:
        """Return twice the pairs of tokens of a sequence that attend to each other, in each block.

        Of s tokens with a window of w, s w - w^2 / 2 pairs do (without one w is s); in chunks of w, w^2 / 2 pairs of
        each.
        """
        return tuple(self.twice_pairs_within(window, sequence_length) for window in self.layer_windows(sequence_length))

    def twice_pairs_within(self, window: int, tokens: int) -> int:
        """Return the same of one block with a window, which is at most as long as the tokens."""
        if self.chunked_windows:
            whole, rest = divmod(tokens, window)
            return whole * window**2 + rest**2
        return window * (2 * tokens - window)

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Blocks, from 0, of a mixture of experts that have none; nothing of a dense model."""
        return () if self.experts is None else self.experts.dense_layers

    @property
    def mtp_is_dense(self) -> bool:
        """Whether blocks that predict further tokens have no experts: those of a model whose last block has none."""
        return self.experts is None or self.num_layers - 1 in self.dense_layers

    @property
    def value_head_dim(self) -> int:
        """Values of a head of the values."""
        return self.head_dim if self.latent_attention is None else self.latent_attention.value_dim

    @property
    def attended_width(self) -> int:
        """Values of the output of attention of a token, over all heads."""
        return self.num_attention_heads * self.value_head_dim

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
        return self.gated_width(self.intermediate_size)

    def gated_width(self, width: int) -> int:
        """Return the values that the first product of an MLP of a width gives for a token."""
        return (2 if self.activation.gated else 1) * width

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the QKV projection has a bias."""
        return self.qkv_bias or self.biases

    @property
    def score_scale(self) -> float | None:
        """What scores of attention are multiplied by; None: one over the root of `head_dim`."""
        scaling = self.rotary_scaling
        if not isinstance(scaling, AngleScaling) or scaling.score_scale == 1:
            return self.attention_scale
        usual = self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
        return usual * scaling.score_scale

    @property
    def has_projection_bias(self) -> bool:
        """Whether attention's output projection has a bias."""
        return self.biases if self.projection_bias is None else self.projection_bias

    @property
    def has_mlp_bias(self) -> bool:
        """Whether the products of the MLP have biases."""
        return self.biases if self.mlp_bias is None else self.mlp_bias

    @property
    def has_norm_bias(self) -> bool:
        """Whether norms have an offset."""
        return (self.biases if self.norm_bias is None else self.norm_bias) and self.norm is NormKind.LAYERNORM


def model_words(name: str) -> str:
    """Return the name of a model as its makers write it; names that are not like any of theirs as they are.

    Example:
        >>> [model_words(name) for name in ("llama-3.1-8b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt2-xl", "mine")]
        ['Llama 3.1 8B', 'Qwen3 30B A3B', 'Mixtral 8x7B', 'GPT-2 XL', 'mine']
    """
    family = next(
        (known_family for known_family in FAMILIES if re.match(rf"{re.escape(known_family)}v?[0-9]", name)), None
    )
    if family is None or "-" not in name:
        return name
    rest = name.removeprefix(family).replace("-", " ")
    rest = re.sub(r"\b[av](?=[0-9])|(?<=[0-9])b\b|\b[a-z]{2}\b", lambda match: match[0].upper(), rest)
    return FAMILIES[family] + re.sub(r"\b[a-z]{3,}\b", lambda match: match[0].capitalize(), rest)
