"""Differences between the blocks of models: where norms are, what they see, how branches join, how angles stretch.

Each kind is a value of a field of `kareus.model.config.Model`. What has no kind of its own is refused where a model is
read (`kareus.workload.huggingface`).
"""

from dataclasses import dataclass
from enum import StrEnum

from kareus.artifacts.ranges import within


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
    """The way; the engine computes `linear`, the others are planned and predicted."""
    stretch_factor: float
    """Factor by which sequences may be longer."""

    def __post_init__(self) -> None:
        within(self, 1e-3, 1e6, "times", "stretch_factor")
