"""Sources of clocks for adapters: a plan, a folder of plans to change between, or a request to profile the job."""

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from kareus.adapters.agreement import Agreement
from kareus.adapters.choice import ClockChoice, PlanChoice
from kareus.adapters.layout import RankLayout, check_layout, check_order
from kareus.adapters.online import PlanFolder
from kareus.adapters.profiling import Profiling
from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.device.actuators import CLOCKS, Actuator
from kareus.device.controller import check_clocks
from kareus.device.protocol import Device
from kareus.graph.instruction import InstructionKey
from kareus.model.parallelism import FsdpSettings
from kareus.plans.document import Plan
from kareus.plans.file import read_plan
from kareus.plans.locate import workload_path
from kareus.profile.programs import Execution
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice

logger = logging.getLogger(__name__)

PlanSource = str | PathLike[str] | PlanFolder | Profiling
"""Path of a plan file, or one of the records that stand for more than one plan."""


def choice_of(
    source: PlanSource,
    layout: RankLayout,
    running: Sequence[InstructionKey],
    gpu: Device | None,
    output: Path | None,
    agreement: Agreement,
) -> tuple[ClockChoice, str, Actuator]:
    """Return what decides the clocks of a rank, the hash of the workload that it is for, and what is set on its GPU.

    Args:
        source: plan, plans or request.
        layout: place of the rank.
        running: forwards and backwards of the rank in the order in which the trainer runs them.
        gpu: GPU of the rank; None on a CPU.
        output: folder of tables and logs; None to write none.
        agreement: of all ranks, for what changes while the job runs.

    Raises:
        EngineError: it is of another layout or order than the job.
        DeviceError: the GPU has not all of its clocks.
        KareusError: it cannot be read.
    """
    if isinstance(source, Profiling):
        profiling = source.choice(layout, running, gpu, agreement)
        return profiling, profiling.workload_hash, CLOCKS
    if isinstance(source, PlanFolder):
        online = source.choice(layout, running, gpu, agreement, output)
        _check_clocks(online.plans, layout, gpu)
        say_what_is_lost(online.plans[0], layout)
        return online, online.workload_hash, online.plans[0].actuator
    plan = read_plan(Path(source))
    check_layout(plan, layout)
    check_order(plan, layout.stage, running)
    _check_clocks([plan], layout, gpu)
    say_what_is_lost(plan, layout)
    return PlanChoice(plan, layout), plan.workload_hash, plan.actuator


def check_source(source: PlanSource) -> None:
    """Check that what decides clocks can be read, before a trainer has started anything.

    Raises:
        KareusError: it is missing or cannot be read.
    """
    exchanges_of(source)


def exchanges_of(source: PlanSource) -> FsdpSettings:
    """Return how replicas are planned to exchange weights.

    Raises:
        KareusError: what decides clocks is missing or cannot be read.
    """
    if isinstance(source, Profiling):
        return load_slice(workload_path(Path(source.workload)), Workload).parallelism.fsdp
    if isinstance(source, PlanFolder):
        return load_slice(WorkloadFolder(Path(source.folder)).config("plan"), PlanSlice).workload.parallelism.fsdp
    return read_plan(Path(source)).fsdp


def _check_clocks(plans: Sequence[Plan], layout: RankLayout, gpu: Device | None) -> None:
    if gpu is not None:
        check_clocks(gpu, (mhz for plan in plans for _, mhz in plan.clocks(layout.stage)))


def say_what_is_lost(plan: Plan, layout: RankLayout) -> None:
    """Warn of instructions that the plan does not run whole, as other trainers do; the first rank does."""
    split = sum(i.execution is not Execution.SEQUENTIAL for _, i in plan.keyed)
    if split and layout.rank == 0:
        logger.warning(
            "plan '%s' of %s: %d of %d instructions are planned as two nanobatches, which this trainer does not run. "
            "It obeys their clocks, and they take another time; select with --method sequential+perseus.",
            plan.selector,
            plan.workload,
            split,
            plan.instructions,
        )
