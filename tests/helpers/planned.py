"""A small workload, planned in this process: its folder has all tables and one plan. What is planned is remembered."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.builders import CONFIG
from kareus.artifacts.layout import WorkloadFolder
from kareus.plans import planning
from kareus.plans.build import select_plan
from kareus.plans.file import write_plan
from kareus.plans.planned_folder import write_planned
from kareus.plans.planning import PlannedTables, plan_tables
from kareus.workload.config import Workload
from kareus.workload.resolve import resolve_accepted

SMALL = (
    *(f"parallelism.{key}" for key in ("pp=4", "tp=4")),
    *(f"model.{key}" for key in ("num_layers=8", "vocab_size=8192")),
    *(f"search.{size}.{key}" for size in ("medium", "large") for key in ("initial=6", "max_rounds=0")),
    "num_microbatches=4",
    "microbatch_size=2",
    "search=random",
    "gpu.search_frequencies.stride_mhz=255",
    "pipeline.deadlines=3",
)
"""Overrides that give three clocks, a few candidates of each partition, three plans."""


def planned_folder(results: Path, selector: str = "fastest", overrides: Sequence[str] = SMALL) -> Path:
    """The folder of the workload of `SMALL`, or of other overrides, below `results`."""
    ((name, workload),) = resolve_accepted(overrides, CONFIG).items()
    folder, planned = WorkloadFolder(results / name), plan_tables(workload)
    write_planned(folder, workload, planned)
    write_plan(folder.plan(selector, "kareus"), select_plan(workload, planned.frontiers, selector, "kareus", name=name))
    return folder.path


def remember_plans(patch: pytest.MonkeyPatch) -> None:
    """Have `kareus.plan` and `kareus.frontier` plan equal workloads of a test file once, as they do by themselves."""
    patch.setattr(planning, "plan_tables", _remembered)


def _remembered(workload: Workload, done: list[tuple[Workload, PlannedTables]] = []) -> PlannedTables:  # noqa: B006
    """Workloads compare, and have no hash."""
    if all(workload != other for other, _ in done):
        done.append((workload, plan_tables(workload)))
    return next(tables for other, tables in done if workload == other)
