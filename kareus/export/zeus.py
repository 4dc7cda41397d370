"""A plan as the frequency schedule of Zeus' pipeline frequency optimizer.

Its server, with `ZEUS_PFO_SCHEDULER=PointSolution3D`, reads a file with one Python literal: for each pipeline stage the
list of (instruction, MHz) in order of execution (`zeus.optimizer.pipeline_frequency.server.scheduler`, Zeus 0.16). The
launch operators and SM counts of a plan have no place in it.
"""

from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.errors import ArtifactError
from kareus.plan.document import Plan


def frequency_schedule(plan: Plan) -> str:
    """Text of the file: a literal below a comment that says what it is of."""
    stages = [[(str(i.direction), i.frequency_mhz) for i in stage.instructions] for stage in plan.stages]
    lines = [f"    [{', '.join(f'({name!r}, {mhz})' for name, mhz in own)}],\n" for own in stages]
    return f"# {plan.workload}, {plan.selector}: {plan.testbed.label}\n[\n{''.join(lines)}]\n"


def is_frequency_schedule(path: Path) -> bool:
    """Return whether a file is one that `frequency_schedule` may have written."""
    try:
        first, *rest = read_text(path).split("\n")
    except ArtifactError:
        return False
    return first.startswith("# ") and rest[:1] == ["["] and rest[-2:] == ["]", ""]
