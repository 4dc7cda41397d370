"""A workload to be trained, and the plan that its microbatches follow, if there is one."""

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
from kareus.testbed.config import CudaCollectives
from kareus.training.settings import DEFAULT_COMMUNICATOR
from kareus.workload.config import Workload

UNPLANNED = "none"
"""Method and selector of a run without a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A workload to be trained."""

    workload: Workload
    plan: Plan | None = None
    graph: BlockGraph | None = None
    """Operator graph of a nanobatch's block; None if no instruction is split."""

    @property
    def method(self) -> str:
        """Method of the plan."""
        return self.plan.method if self.plan else UNPLANNED

    @property
    def selector(self) -> str:
        """Selector of the plan."""
        return self.plan.selector if self.plan else UNPLANNED

    @property
    def communicator(self) -> str:
        """Library that the plan's collectives were measured with, whose SM counts are its own; NCCL elsewhere."""
        cuda = self.workload.testbed.cuda
        measured = cuda is not None and cuda.collectives is CudaCollectives.MSCCLPP
        return "mscclpp" if self.plan is not None and measured else DEFAULT_COMMUNICATOR

    def schedules(self, stage: int) -> Schedules:
        """Return the schedules of a stage's microbatches; empty if all are sequential."""
        return planned_schedules(self.plan, stage) if self.plan else {}

    def checkpoint_subject(self, seed: int) -> str:
        """Return a hash of what checkpoints must agree on: the model and its data, but neither layout nor plan."""
        return content_hash((self.workload.model, self.workload.sequence_length, seed))


def planned_job(path: Path, folder: Path | None) -> TrainingJob:
    """Return the job of the plan at `path`; `folder` is its workload's if the plan is elsewhere.

    Raises:
        ArtifactError: the plan is not one of this workload, or tables are missing.
    """
    plan, workload = read_checked_plan(path, folder)
    if all(i.execution is Execution.SEQUENTIAL for stage in plan.stages for i in stage.instructions):
        return TrainingJob(workload=workload, plan=plan)
    home = workload_folder(path, folder)
    check_subject(subject_of(workload), {str(home.segments): read_provenance(home.segments, SEGMENTS)})
    return TrainingJob(workload=workload, plan=plan, graph=read_graphs(home.segments)[Batch.NANOBATCH])


def unplanned_job(path: Path) -> TrainingJob:
    """Return the job of a resolved workload (`results/<workload>/config/workload.yaml`), without a plan.

    Raises:
        ArtifactError: the file is missing or no workload.
    """
    return TrainingJob(workload=load_slice(path, Workload))
