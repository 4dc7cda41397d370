"""A plan as the frequency schedule of Zeus' pipeline frequency optimizer.

Its server, with `ZEUS_PFO_SCHEDULER=PointSolution3D`, reads a file with one Python literal: for each pipeline stage the
list of (instruction, MHz) in order of execution (`zeus.optimizer.pipeline_frequency.server.scheduler`, Zeus 0.16). It
sets clocks and nothing else, so only plans can be exported whose instructions all run in the way of their framework.

Zeus evaluates the file. Nothing is written to it but numbers and words of this package.
"""

import shlex
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.artifacts.layout import WorkloadFolder
from kareus.errors import ArtifactError, ConfigError
from kareus.graph.records import Direction
from kareus.pipeline.compare import FRONTIER_BASELINE
from kareus.plans.document import Plan
from kareus.profile.programs import Execution

HEADER = "# (instruction, MHz) of every pipeline stage, planned by Kareus"
CONTENT = "# Carries: clocks. Leaves out: numbers of microbatches, times, and the update of the weights."


def frequency_schedule(plan: Plan, folder: WorkloadFolder, path: Path) -> str:
    """Return the text of the file: a literal below a comment on how the instructions have to run.

    Args:
        plan: a checked plan.
        folder: of its workload, for the message.
        path: of the plan, for the message.

    Raises:
        ConfigError: the plan needs more than clocks; the message has the commands that export one which does not.
    """
    if not plan.actuator.sets_clocks:
        raise ConfigError(f"{path}: sets {plan.actuator}, and Zeus sets clocks; select it with --actuator clocks.")
    execution = _execution(plan)
    if execution is None:
        selector = shlex.quote(plan.selector)
        other = folder.plan(plan.selector, FRONTIER_BASELINE)
        raise ConfigError(
            f"{path}: its clocks hold only with each instruction executed as the plan says (whole or in halves, with "
            "collectives on so many SMs), and Zeus sets clocks alone; export a plan without: "
            f"kareus select {selector} {shlex.quote(str(folder.path))} --method {FRONTIER_BASELINE} && "
            f"kareus export {shlex.quote(str(other))} --format zeus"
        )
    stages = [[(Direction(i.direction).value, int(i.frequency_mhz)) for i in stage.passes] for stage in plan.stages]
    lines = [f"    [{', '.join(f'({name!r}, {mhz:d})' for name, mhz in of_stage)}],\n" for of_stage in stages]
    return f"{HEADER} for {execution.value} execution\n{CONTENT}\n[\n{''.join(lines)}]\n"


def _execution(plan: Plan) -> Execution | None:
    """The way in which all instructions run; None if they differ in it, or need more than a clock.

    Weight gradients, which have no collectives, run sequentially in any case.
    """
    executions = {
        instruction.execution
        for stage in plan.stages
        for instruction in stage.passes
        if instruction.direction is not Direction.WEIGHT_GRADIENT
    }
    return executions.pop() if len(executions) == 1 and Execution.OVERLAP not in executions else None


def is_frequency_schedule(path: Path) -> bool:
    """Return whether a file is one that `frequency_schedule` may have written."""
    try:
        return read_text(path).startswith(HEADER)
    except ArtifactError:
        return False
