"""The protocol of a measurement: the record of Hydra group `protocol`, and what the stage `profile` reads."""

from dataclasses import dataclass, field

from kareus.artifacts.ranges import within
from kareus.artifacts.records import ADDED
from kareus.gpu_model.gpu import MOST_W, Gpu
from kareus.graph.number_formats import Precision
from kareus.graph.recomputation import Recomputation
from kareus.model.config import Model
from kareus.model.parallelism import Parallelism
from kareus.model.training_options import PLAIN, TrainingOptions
from kareus.software.record import Software
from kareus.testbed.config import TestbedConfig

MOST_S = 1_000_000
"""Longest phase of a measurement: eleven days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementProtocol:
    """Phases of a measurement (paper, section 5.3): warm up, cool down, measure over a window."""

    window_s: float
    """Time over which a program is repeated and measured."""
    cooldown_s: float
    """Rest before the window, in which the heat of the program before is given off."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSlice:
    """The part of the configuration that profiling components and whole instructions reads."""

    model: Model
    parallelism: Parallelism
    gpu: Gpu
    testbed: TestbedConfig
    protocol: MeasurementProtocol
    microbatch_size: int
    sequence_length: int
    recomputation: Recomputation
    split_backward: bool
    chunks: int
    confirmations: int
    seed: int
    software: Software
    precision: Precision
    linked_gpus: int
    training: TrainingOptions = field(default=PLAIN, metadata=ADDED)
