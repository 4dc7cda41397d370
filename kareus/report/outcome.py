"""What was planned, in short: answers of the plans in a folder, for the end of a run and `kareus results`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.tables import read_table
from kareus.pipeline.tables import ITERATION
from kareus.plans.answer import Answer, answer_of
from kareus.plans.file import read_plan
from kareus.plans.locate import plan_files

MOST_ANSWERED = 3
"""Workloads whose answers the end of a run prints; of more, it points to `kareus results`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """One plan of a workload."""

    path: Path
    answer: Answer
    testbed: str
    """Label of the testbed behind the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A planned workload."""

    workload: str
    plans: tuple[PlanOutcome, ...]
    """The newest first."""
    page: Path | None
    planned_at_s: float
    """Time of the newest plan, in seconds since 1970."""


def outcome(folder: Path) -> Outcome | None:
    """Return what was planned in the folder of a workload; None where there is no plan.

    Raises:
        ArtifactError: a plan or the iteration frontier is missing or damaged.
    """
    files = sorted(plan_files(folder), key=lambda path: (-path.stat().st_mtime, path.name))
    if not files:
        return None
    iteration = read_table(WorkloadFolder(folder).iteration, ITERATION)
    plans = [(path, read_plan(path)) for path in files]
    page = folder / "report/page.html"
    return Outcome(
        workload=folder.resolve().name,
        plans=tuple(
            PlanOutcome(path=path, answer=answer_of(plan, iteration), testbed=plan.testbed.label)
            for path, plan in plans
        ),
        page=page if page.is_file() else None,
        planned_at_s=files[0].stat().st_mtime,
    )


def run_lines(results: Path, plans: Sequence[Path], campaign: str) -> list[str]:
    """Return what a run of the workflow ends with: answers, and where pages and plans are.

    Args:
        results: folder of results.
        plans: plan files that the run was asked for.
        campaign: name of the folder of the campaign.
    """
    folders = sorted({path.parents[1] for path in plans if path.is_file()})
    index = results / "campaigns" / campaign / "report/index.html"
    lines = list[str]()
    if len(folders) <= MOST_ANSWERED:
        for folder in folders:
            lines += _answers(folder, plans)
    else:
        lines.append(f"{len(folders)} workloads planned; kareus results --campaign {campaign} lists what they save")
    if len(folders) > 1 and index.is_file():
        lines.append(f"page of the campaign: {index}")
    return lines


def _answers(folder: Path, plans: Sequence[Path]) -> Iterator[str]:
    """Yield the answers of one workload, its page and its plans."""
    found = outcome(folder)
    if found is None:
        return
    asked = [plan for plan in found.plans if plan.path in plans]
    yield f"{found.workload} [{found.plans[0].testbed}]"
    for plan in asked:
        yield plan.answer.sentence
    if found.page is not None:
        yield f"page  {found.page}"
    for plan in asked:
        yield f"plan  {plan.path}"
