"""How a training is run: what a plan does not decide."""

from dataclasses import dataclass
from pathlib import Path

from kareus.errors import ConfigError
from kareus.workload.ranges import not_negative, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter, 2019), and the largest norm of a gradient."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Of matrices; norms and biases do not decay."""
    largest_norm: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "epsilon", "largest_norm")
        not_negative(self, "beta1", "beta2", "weight_decay")
        if max(self.beta1, self.beta2) >= 1:
            raise ConfigError(f"beta1={self.beta1}, beta2={self.beta2}: must be less than 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """One training."""

    iterations: int
    """In all, those before a resumption too."""
    data: str
    """`synthetic`, a token file (`*.bin`), or a text file or a folder of them."""
    tokenizer: str
    """For texts: `bytes`, or the path of a `tokenizer.json`."""
    output: Path
    """Folder of checkpoints and measurements."""
    weights: Path | None
    """Hugging Face checkpoint to begin with; None draws them from the seed."""
    seed: int | None
    """Of weights and of the order of the data; None is the workload's."""
    checkpoint_every: int
    """Iterations between checkpoints; 0 writes only the last."""
    keep: int
    """Checkpoints that are kept."""
    export: Path | None
    """Folder for the trained weights as a Hugging Face checkpoint; None writes none."""

    def __post_init__(self) -> None:
        positive(self, "iterations", "keep")
        not_negative(self, "checkpoint_every")
        if self.seed is not None:
            not_negative(self, "seed")
