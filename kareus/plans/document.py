"""The plan file: what every stage runs, instruction by instruction, and what that is predicted to cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Annotated, NamedTuple

from kareus.artifacts.provenance import TestbedIdentity
from kareus.artifacts.records import ADDED, Count, NotNegative, Positive
from kareus.artifacts.shown import Shown
from kareus.device.actuators import CLOCKS, Actuator
from kareus.gpu_model.gpu import Gpu
from kareus.gpu_model.waiting import waiting_power_w
from kareus.graph.instruction import NO_MICROBATCH, InstructionKey
from kareus.graph.records import UPDATING, Direction
from kareus.model.parallelism import FsdpSettings
from kareus.pipeline.methods import METHODS
from kareus.plans.units import scaled
from kareus.profile.programs import Execution
from kareus.schedule.records import Choice

PLAN_SCHEMA_VERSION = 6

MicrobatchNumber = Annotated[int, {"minimum": NO_MICROBATCH}]
MethodName = Annotated[str, {"enum": [method.name for method in METHODS]}]


class Wait(NamedTuple):
    """A time in which a GPU of a stage waits."""

    from_s: float
    to_s: float
    frequency_mhz: int
    """Its clock meanwhile: that of the instruction that it waits for, or of its last."""
    power_w: float

    @property
    def energy_j(self) -> float:
        """Energy of one GPU."""
        return self.power_w * (self.to_s - self.from_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInstruction:
    """One instruction of a stage."""

    direction: Direction
    microbatch: MicrobatchNumber
    """Microbatch, from 0; -1 for the update of the weights, which is of all."""
    chunk: Count
    """Chunk of the stage's layers that it passes; always 0 unless the pipeline is interleaved."""
    execution: Execution
    frequency_mhz: Count
    partitions: tuple[Choice, ...]
    """A choice for each partition under `overlap`, else empty."""
    start_s: NotNegative
    """Earliest start in the planned iteration."""
    time_s: Positive
    energy_j: Positive
    """Of one GPU of the stage."""
    change_s: NotNegative = 0.0
    """Part of `time_s` that the change of clock costs with which the instruction begins; 0 where none does."""
    change_j: NotNegative = 0.0
    """The same of `energy_j`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Instructions of one pipeline stage, in order of execution."""

    stage: Count
    layers: Count
    """Number of transformer blocks of all its chunks."""
    instructions: tuple[PlannedInstruction, ...]

    @property
    def passes(self) -> tuple[PlannedInstruction, ...]:
        """Forwards and backwards: all instructions but those of the update of the weights."""
        return tuple(i for i in self.instructions if i.direction not in UPDATING)

    @property
    def clock_changes(self) -> int:
        """How often its clock changes in an iteration, the one from the iteration before included."""
        clocks_mhz = [i.frequency_mhz for i in self.instructions]
        return sum(before != after for before, after in pairwise([*clocks_mhz[-1:], *clocks_mhz]))

    @property
    def keyed(self) -> tuple[tuple[InstructionKey, PlannedInstruction], ...]:
        """Instructions of the stage with their keys, in order of execution."""
        return tuple((InstructionKey(self.stage, i.chunk, i.microbatch, i.direction), i) for i in self.instructions)

    def waits(self, end_s: float, gpu: Gpu) -> Iterator[Wait]:
        """Return when the stage waits, and what power a GPU of it then draws.

        Args:
            end_s: of the iteration.
            gpu: that runs it.
        """
        return waits_between([(i.start_s, i.time_s, i.frequency_mhz) for i in self.instructions], end_s, gpu)


def waits_between(runs: Sequence[tuple[float, float, int]], end_s: float, gpu: Gpu) -> Iterator[Wait]:
    """Yield when a stage waits, and what power a GPU of it then draws.

    Args:
        runs: of its instructions, in order: start, time and clock.
        end_s: of the iteration.
        gpu: that runs it.
    """
    now_s = 0.0
    for start_s, time_s, clock in (*runs, (end_s, 0.0, runs[-1][2])):
        if start_s > now_s:
            yield Wait(now_s, start_s, clock, waiting_power_w(gpu, clock))
        now_s = start_s + time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCost:
    """Predicted cost of one iteration."""

    time_s: Positive
    energy_j: Positive
    """Of all GPUs, in a long training; where the temperature of the air is not known, at those of profiling."""
    static_energy_j: Positive
    dynamic_energy_j: float
    lower_bound_j: Positive
    """Energy that no plan of this method can undercut in this time; if a deadline was asked for, within that."""

    @property
    def gap(self) -> float:
        """Certified gap to the lower bound, as a share of it."""
        return self.energy_j / self.lower_bound_j - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Shown):
    """A point of an iteration frontier, ready to be run.

    Example:
        >>> import kareus
        >>> plan = kareus.plan(*kareus.resolve(["num_microbatches=2"]))
        >>> [len(stage.instructions) for stage in plan.stages], plan.gpus
        ([6, 6], 16)
        >>> print(plan)
        llama3.2-3b_pp2-tp8_mbs8_seq4096_a100_...: plan fastest of kareus [simulated testbed, A100-SXM4-40GB]
        ... s and ... kJ an iteration on 16 GPUs; at most ... % above the least energy ...
        12 instructions on 2 stages, at ... to ... MHz; changes of clock an iteration, stage by stage: ...
    """

    schema_version: Count
    kareus_version: str
    created_at: str
    workload: str
    """Readable name of the workload."""
    workload_hash: str
    """Hash of the resolved workload; a plan is checked against it."""
    method: MethodName
    selector: str
    """The request that picked this point, such as `deadline=4.6s`."""
    testbed: TestbedIdentity
    """Where the measurements behind the plan were taken."""
    gpus: Count
    prediction: PredictedCost
    stages: tuple[StagePlan, ...]
    actuator: Actuator = field(default=CLOCKS, metadata=ADDED)
    """What it sets on a GPU: the clocks of its instructions unless it was planned for something else."""
    fsdp: FsdpSettings = field(default=FsdpSettings(), metadata=ADDED)
    """How replicas are planned to exchange weights that they share out."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan file that `kareus.load_plan` and the adapters read, atomically; missing folders are made.

        Args:
            path: of a new file, or of a plan, which is replaced.

        Raises:
            ArtifactError: there is something that is no plan, or in a folder `plan` the name is that of another
                selector.

        Example:
            >>> import kareus
            >>> plan = kareus.plan(*kareus.resolve(["num_microbatches=2"]))
            >>> plan.save("mine/fastest.json")
            >>> kareus.load_plan("mine/fastest.json") == plan
            True
        """
        from kareus.plans.file import save_plan  # noqa: PLC0415 - which reads this module

        save_plan(Path(path), self)

    @property
    def instructions(self) -> int:
        """Number of instructions of all stages."""
        return sum(len(stage.instructions) for stage in self.stages)

    @property
    def changes(self) -> str:
        """How often each stage changes its clock, and what that costs, in words.

        Example:
            >>> import kareus
            >>> print(kareus.plan(*kareus.resolve(["num_microbatches=2"])).changes)
            changes of clock an iteration, stage by stage: ..., taken to cost no time until ...
        """
        if not self.actuator.sets_clocks:
            return "no change of clock: none is locked"
        counts = ", ".join(str(stage.clock_changes) for stage in self.stages)
        if not any(stage.clock_changes for stage in self.stages):
            return "no change of clock"
        longest_s = max(sum(i.change_s for i in stage.instructions) for stage in self.stages)
        free = ", taken to cost no time until `kareus doctor --measure` has measured them"
        priced = f", which make it up to {scaled(longest_s, 's')} longer" if longest_s else free
        return f"changes of clock an iteration, stage by stage: {counts}{priced}"

    @property
    def update_s(self) -> float:
        """Time of the iteration after the last backward of all stages; 0 where the update is not planned."""
        if not any(len(stage.passes) < len(stage.instructions) for stage in self.stages):
            return 0.0
        return self.prediction.time_s - max(i.start_s + i.time_s for stage in self.stages for i in stage.passes)

    def clocks(self, stage: int) -> tuple[tuple[InstructionKey, int | None], ...]:
        """Return the instructions of a stage with the clocks to lock; None where the plan locks none."""
        locks = self.actuator.sets_clocks
        return tuple((key, i.frequency_mhz if locks else None) for key, i in self.stages[stage].keyed)

    @property
    def keyed(self) -> tuple[tuple[InstructionKey, PlannedInstruction], ...]:
        """Instructions of all stages with their keys, stage by stage in order of execution."""
        return tuple(pair for stage in self.stages for pair in stage.keyed)
