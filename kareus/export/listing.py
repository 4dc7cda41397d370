"""A plan as a table of its instructions, in CSV and in Markdown, for spreadsheets and for people."""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kareus.artifacts.files import read_text
from kareus.errors import ArtifactError
from kareus.plans.document import Plan, PlannedInstruction, StagePlan

COLUMNS = (
    "stage",
    "layers",
    "chunk",
    "microbatch",
    "direction",
    "execution",
    "frequency_mhz",
    "start_s",
    "time_s",
    "energy_j",
    "change_s",
    "collectives",
)
"""Columns of the CSV; energy is of one GPU of the stage, `change_s` is how much longer a change of clock makes
`time_s`, and `collectives` says SMs and launches of each partition."""


def plan_csv(plan: Plan) -> str:
    """Return a row for each instruction, stage by stage in order of execution."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for stage in plan.stages:
        writer.writerows(_row(stage, instruction) for instruction in stage.instructions)
    return text.getvalue()


def plan_markdown(plan: Plan) -> str:
    """Return what a plan costs, and a table of how its stages run, clock by clock."""
    cost = plan.prediction
    lines = [
        f"# Plan {plan.selector} of {plan.workload}",
        "",
        f"Method {plan.method}, {plan.gpus} GPUs, {plan.testbed.label}. Predicted are {cost.time_s:.4f} s and "
        f"{cost.energy_j / 1e3:.3f} kJ an iteration ({cost.static_energy_j / 1e3:.3f} static, "
        f"{cost.dynamic_energy_j / 1e3:.3f} dynamic); no plan of the method needs less than "
        f"{cost.lower_bound_j / 1e3:.3f} kJ in this time. Clocks: {plan.changes}.",
        "",
        "| stage | layers | direction | execution | MHz: instructions | time s | energy of a GPU J |",
        "| ---: | ---: | --- | --- | --- | ---: | ---: |",
        *(row for stage in plan.stages for row in _stage_rows(stage)),
    ]
    return "\n".join(lines) + "\n"


def is_plan_csv(path: Path) -> bool:
    """Return whether a file is one of `plan_csv`."""
    return _begins(path, ",".join(COLUMNS))


def is_plan_markdown(path: Path) -> bool:
    """Return whether a file is one of `plan_markdown`."""
    return _begins(path, "# Plan ")


def _begins(path: Path, text: str) -> bool:
    try:
        return read_text(path).startswith(text)
    except ArtifactError:
        return False


def _row(stage: StagePlan, i: PlannedInstruction) -> list[str | int | float]:
    collectives = "; ".join(f"{choice.partition}: {choice.sm_count} SMs, {choice.launch}" for choice in i.partitions)
    planned = (
        i.chunk,
        i.microbatch,
        str(i.direction),
        str(i.execution),
        i.frequency_mhz,
        i.start_s,
        i.time_s,
        i.energy_j,
        i.change_s,
    )
    return [stage.stage, stage.layers, *planned, collectives]


def _stage_rows(stage: StagePlan) -> Iterator[str]:
    """Yield a row for each direction and way to run."""
    groups: dict[tuple[str, str], list[PlannedInstruction]] = {}
    for instruction in stage.instructions:
        groups.setdefault((str(instruction.direction), str(instruction.execution)), []).append(instruction)
    for (direction, execution), alike in groups.items():
        clocks = sorted(Counter(i.frequency_mhz for i in alike).items(), reverse=True)
        shown = ", ".join(f"{mhz}: {count}" for mhz, count in clocks)
        time_s, energy_j = sum(i.time_s for i in alike), sum(i.energy_j for i in alike)
        yield (
            f"| {stage.stage} | {stage.layers} | {direction} | {execution} | {shown} | {time_s:.4f} | {energy_j:.1f} |"
        )
