"""What is trained: a workload, and the plan that its microbatches follow, if there is one; and how."""

from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.provenance import check_subject
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance
from kareus.graph.records import Batch, BlockGraph
from kareus.partition.config import subject_of
from kareus.partition.read import read_graphs
from kareus.partition.tables import SEGMENTS
from kareus.plans.check_stage import read_checked_plan, workload_folder
from kareus.plans.document import Plan
from kareus.profile.programs import Execution
from kareus.runtime.schedules import Schedules, planned_schedules
from kareus.training.learning_rate import LearningRateSchedule
from kareus.training.settings import OptimizerSettings, TrainingSettings
from kareus.workload.config import Workload

UNPLANNED = "none"
"""Method and selector of a run without a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A workload to be trained."""

    workload: Workload
    plan: Plan | None = None
    graph: BlockGraph | None = None
    """Of a nanobatch's block; None if no instruction is split."""

    @property
    def method(self) -> str:
        """Of the plan."""
        return self.plan.method if self.plan else UNPLANNED

    @property
    def selector(self) -> str:
        """Of the plan."""
        return self.plan.selector if self.plan else UNPLANNED

    def schedules(self, stage: int) -> Schedules:
        """How the microbatches of a stage run; none are said to where all are sequential."""
        return planned_schedules(self.plan, stage) if self.plan else {}

    def checkpoint_subject(self, seed: int) -> str:
        """What a checkpoint has to agree with: plans may change from one to the next, weights' shapes may not."""
        w = self.workload
        return content_hash((w.model, w.parallelism, w.chunks, w.sequence_length, seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """All that is asked of a training; the same on every rank."""

    job: Job
    settings: TrainingSettings
    optimizer: OptimizerSettings
    learning_rate: LearningRateSchedule
    clocks: str | None
    """See `kareus.training.clocks.device_and_clocks`."""


def planned_job(path: Path, folder: Path | None) -> Job:
    """The job of the plan at `path`; `folder` is its workload's if the plan is elsewhere.

    Raises:
        ArtifactError: the plan is not one of this workload, or tables are missing.
    """
    plan, workload = read_checked_plan(path, folder)
    if all(i.execution is Execution.SEQUENTIAL for stage in plan.stages for i in stage.instructions):
        return Job(workload=workload, plan=plan)
    home = workload_folder(path, folder)
    check_subject(subject_of(workload), {str(home.segments): read_provenance(home.segments, SEGMENTS)})
    return Job(workload=workload, plan=plan, graph=read_graphs(home.segments)[Batch.NANOBATCH])


def unplanned_job(path: Path) -> Job:
    """The job of a resolved workload (`results/<workload>/config/workload.yaml`), sequential at the driver's clocks.

    Raises:
        ArtifactError: the file is missing or no workload.
    """
    return Job(workload=load_slice(path, Workload))
