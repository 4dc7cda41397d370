"""Differences between the blocks of models: where norms are, what they see, how branches join, how angles stretch.

Each kind is a value of a field of `kareus.model.config.Model`. What has no kind of its own is refused where a model is
read (`kareus.workload.huggingface`).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from kareus.artifacts.ranges import within
from kareus.artifacts.records import ADDED


class NormPlacement(StrEnum):
    """Where the norms of attention and of the MLP are."""

    BEFORE = "before"
    """Before each (Llama)."""
    AFTER = "after"
    """After each, before the residual addition (OLMo 2)."""
    AROUND = "around"
    """Both before and after each (Gemma 2)."""


class Branches(StrEnum):
    """How attention and the MLP of a block follow each other."""

    SEQUENTIAL = "sequential"
    """The MLP reads the sum after attention (Llama)."""
    PARALLEL = "parallel"
    """Both read what enters the block, each behind a norm of its own (GPT-NeoX)."""
    PARALLEL_ONE_NORM = "parallel-one-norm"
    """Likewise, behind the same norm (Phi, Cohere)."""

    @property
    def parallel(self) -> bool:
        """Whether the MLP reads what attention reads."""
        return self is not Branches.SEQUENTIAL


class QkNormScope(StrEnum):
    """What norms of queries and keys see at once."""

    HEAD = "head"
    """A head; all heads share the weights (Qwen 3)."""
    OWN_HEAD = "own-head"
    """A head, each with weights of its own (Cohere, StableLM)."""
    TOKEN = "token"
    """All heads of a token (OLMo 2)."""
    UNWEIGHTED = "unweighted"
    """A head, without weights (Llama 4)."""


class AngleStretch(StrEnum):
    """How rotary embeddings are stretched to longer sequences, besides Llama 3.1's way: no operator changes."""

    LINEAR = "linear"
    DYNAMIC = "dynamic"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True, kw_only=True)
class AngleScaling:
    """Stretching of rotary position embeddings in a way that changes angles alone."""

    stretch: AngleStretch
    """The way; the engine computes `linear` and `yarn`, the others are planned and predicted."""
    stretch_factor: float
    """Factor by which sequences may be longer."""
    original_sequence_length: int | None = field(default=None, metadata=ADDED)
    """Tokens of the sequences before, of `yarn`; null where it is not said, so that angles are not known."""
    fast_turns: float = field(default=32.0, metadata=ADDED)
    """Of `yarn`: what turns so often within those, or more, is not stretched (`beta_fast`)."""
    slow_turns: float = field(default=1.0, metadata=ADDED)
    """What turns so often, or less, is stretched as a whole (`beta_slow`)."""
    whole_bounds: bool = field(default=True, metadata=ADDED)
    """Whether bounds of what is between are rounded to whole numbers of angles (`truncate`)."""
    turned_scale: float = field(default=1.0, metadata=ADDED)
    """What queries and keys are multiplied by as they turn (`attention_factor`)."""
    score_scale: float = field(default=1.0, metadata=ADDED)
    """What scores of attention are multiplied by besides (DeepSeek-V3)."""

    def __post_init__(self) -> None:
        within(self, 1e-3, 1e6, "times", "stretch_factor", "turned_scale", "score_scale")
        within(self, 1e-6, 1e6, "turns", "fast_turns", "slow_turns")
        if self.original_sequence_length is not None:
            within(self, 1, 10**9, "tokens", "original_sequence_length")

    @property
    def has_angles(self) -> bool:
        """Whether it says all that angles follow from; those of the other ways depend on sequences, or are listed."""
        return self.stretch is AngleStretch.LINEAR or (
            self.stretch is AngleStretch.YARN and self.original_sequence_length is not None
        )
