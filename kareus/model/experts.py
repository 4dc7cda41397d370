"""Mixtures of experts and latent attention: the records of a model's `experts` and `latent_attention`."""

from dataclasses import dataclass, field
from enum import StrEnum

from kareus.artifacts.ranges import within
from kareus.artifacts.records import ADDED
from kareus.errors import ConfigError

MOST_EXPERTS = 100_000
"""Largest number of experts of a block."""
MOST_WIDTH = 10_000_000
"""Largest width of an expert, in values of a token."""


class RouterScore(StrEnum):
    """What a router makes of its logits."""

    SOFTMAX = "softmax"
    """Shares that add up to one (Mixtral)."""
    SIGMOID = "sigmoid"
    """A number from 0 to 1 for each expert by itself (DeepSeek-V3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Experts in the place of the MLP of a block: a router sends each token to a few of many small MLPs.

    Example:
        >>> from kareus.model.experts import Experts
        >>> Experts(count=128, per_token=8, width=768).routed_width
        6144
    """

    count: int
    """Experts of a block among which the router chooses."""
    per_token: int
    """Experts that a token is sent to."""
    width: int
    """Width of an expert inside, in values of a token."""
    shared_width: int = field(default=0, metadata=ADDED)
    """Width of the MLP beside the experts that all tokens pass; 0 where there is none (DeepSeek)."""
    shared_gate: bool = field(default=False, metadata=ADDED)
    """Whether a product of its own scales what that MLP gives (Qwen 2)."""
    biases: bool = field(default=False, metadata=ADDED)
    """Whether the products of experts and the router have biases (gpt-oss)."""
    dense_layers: tuple[int, ...] = field(default=(), metadata=ADDED)
    """Blocks, from 0, that have the MLP of `intermediate_size` and no experts."""
    score: RouterScore = field(default=RouterScore.SOFTMAX, metadata=ADDED)
    """What the router makes of its logits."""
    groups: int = field(default=1, metadata=ADDED)
    """Groups of experts that the router ranks first (DeepSeek: `n_group`)."""
    groups_per_token: int = field(default=1, metadata=ADDED)
    """Groups that the experts of a token are chosen from."""
    normalised: bool = field(default=True, metadata=ADDED)
    """Whether the shares of a token's experts add up to one (`norm_topk_prob`)."""
    share_scale: float = field(default=1.0, metadata=ADDED)
    """What the shares of a token's experts are multiplied by (`routed_scaling_factor`)."""
    balance_loss: float = field(default=0.0, metadata=ADDED)
    """What the loss that balances experts is multiplied by before training adds it (`router_aux_loss_coef`)."""
    bias_step: float = field(default=0.0, metadata=ADDED)
    """What an update adds to the bias of experts with fewer tokens than the mean, and takes from those with more."""

    def __post_init__(self) -> None:
        within(self, 1, MOST_EXPERTS, "experts", "count", "per_token")
        within(self, 1, MOST_WIDTH, "values", "width")
        within(self, 0, MOST_WIDTH, "values", "shared_width")
        within(self, 1, MOST_EXPERTS, "groups", "groups", "groups_per_token")
        within(self, 1e-9, 1e6, "times", "share_scale")
        within(self, 0, 1e6, "times", "balance_loss")
        within(self, 0, 1, "of a score", "bias_step")
        if self.per_token > self.count:
            raise ConfigError(
                f"per_token={self.per_token}: must be at most count ({self.count}), the experts there are."
            )
        if self.count % self.groups or self.groups_per_token > self.groups:
            raise ConfigError(
                f"groups={self.groups}: must divide count ({self.count}), and be groups_per_token "
                f"({self.groups_per_token}) or more."
            )
        if self.bias_step and self.score is not RouterScore.SIGMOID:
            raise ConfigError(f"bias_step={self.bias_step:g}: expected 0 with score={self.score}, which has no bias.")
        if self.shared_gate and not self.shared_width:
            raise ConfigError("shared_gate=true: expected false with shared_width=0, which has nothing to scale.")

    @property
    def routed_width(self) -> int:
        """Width of the experts of a token together."""
        return self.per_token * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Queries, keys and values from vectors of low rank, one for all heads (DeepSeek-V2, section 2.1).

    A head of a query or key has values that do not rotate, from its own latent vector, and then some that do; the
    rotating ones of keys are the same in all heads. `head_dim` of the model is both together.
    """

    query_rank: int | None
    """Values of the latent vector of queries; null where they are projected at once."""
    key_value_rank: int
    """Values of the latent vector of keys and values."""
    rotary_dim: int
    """Values of a head that rotate."""
    value_dim: int
    """Values of a head of the values."""

    def __post_init__(self) -> None:
        within(self, 1, MOST_WIDTH, "values", "key_value_rank")
        within(self, 1, 100_000, "values", "rotary_dim", "value_dim")
        if self.query_rank is not None:
            within(self, 1, MOST_WIDTH, "values", "query_rank")
