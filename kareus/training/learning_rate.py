"""The learning rate of an iteration: linear warm-up, then a cosine down to a final rate, then that."""

import math
from dataclasses import dataclass

from kareus.artifacts.ranges import within
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
