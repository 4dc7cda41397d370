"""Settings of a training that are not part of a plan, its learning rates among them."""

import math
from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.ranges import not_negative, positive, within
from kareus.errors import ConfigError

MOST_ITERATIONS = 10**8
LARGEST_RATE = 100.0
"""Far beyond what AdamW learns with; a larger value is a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateSchedule:
    """A warm-up and a cosine decay (Loshchilov and Hutter, 2017, without restarts)."""

    peak: float
    final: float
    warmup_iterations: int
    decay_iterations: int
    """Iterations from the end of the warm-up until `final` is reached."""

    def __post_init__(self) -> None:
        within(self, 0, LARGEST_RATE, "no unit", "peak")
        if not 0 <= self.final <= self.peak:
            raise ConfigError(f"final={self.final}: must be from 0 to peak ({self.peak}).")
        within(self, 0, MOST_ITERATIONS, "iterations", "warmup_iterations", "decay_iterations")

    def at(self, iteration: int) -> float:
        """Return the learning rate of iteration number `iteration`, from 0."""
        if iteration < self.warmup_iterations:
            return self.peak * (iteration + 1) / self.warmup_iterations
        elapsed = iteration - self.warmup_iterations
        if elapsed >= self.decay_iterations:
            return self.final
        return self.final + (self.peak - self.final) * (1 + math.cos(math.pi * elapsed / self.decay_iterations)) / 2


DEFAULT_COMMUNICATOR = "nccl"
LARGEST_SEED = 2**63 - 1
"""Tables and JSON files have whole numbers of 64 bits."""
LARGEST_DECAY = 100.0
"""Far beyond what AdamW learns with; a larger value is a slip."""
LARGEST_NORM = 1e38
"""Single precision ends at 3.4e38."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter, 2019), and the largest norm of a gradient."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    """Weight decay of matrices; norms and biases do not decay."""
    largest_norm: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "epsilon", "largest_norm")
        not_negative(self, "beta1", "beta2")
        within(self, 0, 1, "no unit", "epsilon")
        within(self, 0, LARGEST_NORM, "norm of a gradient", "largest_norm")
        within(self, 0, LARGEST_DECAY, "no unit", "weight_decay")
        if not max(self.beta1, self.beta2) < 1:
            raise ConfigError(f"beta1={self.beta1}, beta2={self.beta2}: must be less than 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Settings of one training, the same on every rank."""

    iterations: int
    """Number of iterations, those before a resumption included."""
    data: str
    """`synthetic`, a token file (`*.bin`), or a text file or a folder of them."""
    tokenizer: str
    """Tokenizer of texts: `bytes`, or the path of a `tokenizer.json`."""
    output: Path
    """Folder of checkpoints and measurements."""
    weights: Path | None
    """Hugging Face checkpoint to begin with; None draws them from the seed."""
    seed: int | None
    """Seed of weights and of the order of the data; None takes the workload's."""
    checkpoint_every: int
    """Iterations between checkpoints; 0 writes only the last."""
    keep: int
    """Number of checkpoints that are kept."""
    export: Path | None
    """Folder for the trained weights as a Hugging Face checkpoint; None writes none."""
    metrics: Path | None = None
    """Folder for TensorBoard event files; None writes none."""
    replace_export: bool = False
    """Whether a checkpoint that is in `export` may be replaced."""
    optimizer: OptimizerSettings
    learning_rate: LearningRateSchedule
    cuda_graphs: bool = False
    """Whether GPUs launch the blocks of an instruction by one CUDA graph."""
    clocks: str | None = None
    """Clock policy, see `kareus.training.clocks.device_and_clocks`."""
    strict_clocks: bool = False
    """Whether a clock that the driver refuses ends the training."""

    def __post_init__(self) -> None:
        positive(self, "iterations", "keep")
        within(self, 0, MOST_ITERATIONS, "iterations", "iterations", "checkpoint_every")
        within(self, 0, MOST_ITERATIONS, "checkpoints", "keep")
        if self.seed is not None:
            within(self, 0, LARGEST_SEED, "no unit", "seed")
