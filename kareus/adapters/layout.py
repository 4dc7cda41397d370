"""The place of a rank in the pipeline of a trainer, and whether a plan is of such a pipeline."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kareus.errors import EngineError
from kareus.graph.instruction import InstructionKey
from kareus.graph.records import UPDATING
from kareus.plans.document import Plan
from kareus.runtime.follower import PlannedStep
from kareus.workload.config import Workload
from kareus.workload.naming import plain_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """Where a rank is in its trainer's pipeline, in the trainer's own numbers."""

    rank: int
    """Of all ranks of the job."""
    gpus: int
    """Ranks of the job."""
    stage: int
    """Pipeline stage of this rank, from 0."""
    stages: int
    chunks: int = 1
    """Parts of the layers of each stage, as virtual stages are."""
    microbatches: int
    """Microbatches of one pipeline in one iteration."""


def check_layout(plan: Plan, layout: RankLayout) -> None:
    """Check that a plan is of a pipeline of this size, before any of its clocks is set.

    A plan for another number of replicas holds but for its update (`steps_of`); the first rank warns of that.

    Raises:
        EngineError: it has other stages, chunks or microbatches.
    """
    passes = plan.stages[0].passes
    chunks, microbatches = 1 + max(i.chunk for i in passes), 1 + max(i.microbatch for i in passes)
    what = f"plan '{plan.selector}' of {plan.workload}"
    _check_sizes(what, (len(plan.stages), chunks, microbatches), layout)
    if plan.gpus != layout.gpus and layout.rank == 0:
        logger.warning(
            "%s: is of %d GPUs, this job has %d. Its clocks of forwards and backwards are set, which hold if only the "
            "number of replicas differs; those of the update are not, and its times and energies are not this job's.",
            what,
            plan.gpus,
            layout.gpus,
        )


def steps_of(plan: Plan, layout: RankLayout) -> tuple[PlannedStep, ...]:
    """Return what a plan has for the instructions of a rank, in order.

    Forwards and backwards do not depend on how many replicas of the pipeline there are. The update of the weights does:
    where the job has other GPUs than the plan, it is left out, and runs at the clock of the last backward.
    """
    steps = (PlannedStep(key, mhz) for key, mhz in plan.clocks(layout.stage))
    return tuple(step for step in steps if plan.gpus == layout.gpus or step.key.direction not in UPDATING)


def check_workload_layout(workload: Workload, layout: RankLayout) -> None:
    """Check that a workload is of a pipeline of this size.

    Raises:
        EngineError: it has other stages, chunks, microbatches or GPUs.
    """
    parallelism = workload.parallelism
    sizes = parallelism.pp, workload.chunks, workload.num_microbatches, parallelism.gpus
    _check_sizes(f"workload {plain_name(workload)}", sizes, layout)


def _check_sizes(what: str, sizes: tuple[int, ...], layout: RankLayout) -> None:
    """Check as many sizes as are given, in this order."""
    names = "stages", "chunks a stage", "microbatches", "GPUs"
    running_sizes = layout.stages, layout.chunks, layout.microbatches, layout.gpus
    for name, planned, running in zip(names, sizes, running_sizes, strict=False):
        if planned != running:
            raise EngineError(
                f"{what}: is of {planned} {name}, this job has {running}; plan a workload with the layout of this job."
            )


def check_order(plan: Plan, stage: int, running: Sequence[InstructionKey]) -> None:
    """Check that a plan has the forwards and backwards of a stage in the order in which a trainer runs them.

    Raises:
        EngineError: it has another one; the message names the first instruction that differs.
    """
    check_keys([key for key, _ in plan.stages[stage].keyed if key.direction not in UPDATING], running)


def check_keys(planned: Sequence[InstructionKey], running: Sequence[InstructionKey]) -> None:
    """Check that a trainer runs the forwards and backwards of a stage in the planned order.

    Raises:
        EngineError: it does not; the message names the first instruction that differs.
    """
    for there, here in zip_longest(planned, running):
        if there != here:
            raise EngineError(
                f"{here or 'the end of the last backward'}: the plan has {there or 'its end'} here; plan the workload "
                "with the pipeline schedule of this job."
            )
