"""The plan file: what every stage runs, instruction by instruction, and what that is predicted to cost."""

from dataclasses import dataclass

from kareus.artifacts.provenance import TestbedIdentity
from kareus.schedule.choice import Choice

PLAN_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstruction:
    """One instruction of a stage."""

    direction: str
    """`forward` or `backward`."""
    microbatch: int
    execution: str
    """`sequential`, `nanobatching`, or `overlap` with a choice for each partition."""
    frequency_mhz: int
    partitions: tuple[Choice, ...]
    """Empty unless `execution` is `overlap`."""
    start_s: float
    """Earliest start in the planned iteration."""
    time_s: float
    energy_j: float
    """Of one GPU of the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Instructions of one pipeline stage, in order of execution."""

    stage: int
    layers: int
    instructions: tuple[PlannedInstruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted cost of one iteration."""

    time_s: float
    energy_j: float
    """Of all GPUs."""
    static_energy_j: float
    dynamic_energy_j: float
    lower_bound_j: float
    """Energy that no plan of this method can undercut in this time; if a deadline was asked for, within that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A point of an iteration frontier, ready to be run."""

    schema_version: int
    kareus_version: str
    created_at: str
    workload: str
    """Readable name of the workload."""
    workload_hash: str
    """Hash of the resolved workload; a plan is checked against it."""
    method: str
    selector: str
    """The request that picked this point, such as `deadline=5.2s`."""
    testbed: TestbedIdentity
    """Where the measurements behind the plan were taken."""
    gpus: int
    prediction: Prediction
    stages: tuple[StagePlan, ...]
