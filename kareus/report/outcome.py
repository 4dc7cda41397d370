"""The outcome of planning in short: answers of the plans in a folder, for the end of a run and `kareus results`."""

import datetime
import itertools
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.files import read_json
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.tables import read_provenance, read_table
from kareus.emulate.tables import FLEET
from kareus.errors import ArtifactError
from kareus.pipeline.compare import OURS
from kareus.pipeline.tables import ITERATION
from kareus.plans.answer import Answer, answer_of, fastest_answer, model_error_line
from kareus.plans.document import Plan
from kareus.plans.file import read_plan
from kareus.plans.frontiers import read_frontiers
from kareus.plans.locate import plan_files
from kareus.plans.obeyed import asked, obeyed_lines, runner_of
from kareus.runtime.engine_checks import engine_refusal
from kareus.software.trainers import ENGINE, trainers
from kareus.testbed.config import TestbedKind
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice

MOST_ANSWERED = 3
"""Workloads whose answers the end of a run prints; of more, it points to `kareus results`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """One plan of a workload."""

    path: Path
    plan: Plan
    answer: Answer
    testbed: str
    """Label of the testbed behind the plan."""
    planned_at_s: float
    """Time of planning as the plan says it, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A planned workload."""

    workload: str
    plans: tuple[PlanOutcome, ...]
    """The newest first."""
    page: Path | None

    @property
    def planned_at_s(self) -> float:
        """Time of planning of the newest plan."""
        return self.plans[0].planned_at_s


def outcome(folder: Path) -> Outcome | None:
    """Return what was planned in the folder of a workload; None where there is no plan.

    Raises:
        ArtifactError: a plan or the iteration frontier is missing or damaged.
    """
    files = plan_files(folder)
    if not files:
        return None
    iteration = read_table(WorkloadFolder(folder).iteration, ITERATION)
    plans = [_planned(path, iteration) for path in files]
    page = folder / "report/page.html"
    return Outcome(
        workload=folder.resolve().name,
        plans=tuple(sorted(plans, key=lambda plan: (-plan.planned_at_s, plan.path.name))),
        page=page if page.is_file() else None,
    )


def _planned(path: Path, iteration: pl.DataFrame) -> PlanOutcome:
    """Return the outcome that a plan file is.

    Raises:
        ArtifactError: the file is damaged, or does not say when it was planned.
    """
    plan = read_plan(path)
    try:
        planned_at = datetime.datetime.fromisoformat(plan.created_at)
    except ValueError as error:
        raise ArtifactError(f"{path}: created_at '{plan.created_at}' is no time; select the plan anew.") from error
    return PlanOutcome(
        path=path,
        plan=plan,
        answer=answer_of(plan, iteration),
        testbed=plan.testbed.label,
        planned_at_s=planned_at.timestamp(),
    )


def run_lines(
    results: Path, plans: Sequence[Path], campaign: str, fleets: Sequence[Path] = (), answers: Sequence[Path] = ()
) -> list[str]:
    """Return the last lines of a run of the workflow: the answers, and the paths of pages and plans.

    Args:
        results: folder of results.
        plans: plan files that the run was asked for.
        campaign: name of the folder of the campaign.
        fleets: tables `FLEET` that the run was asked for.
        answers: answers of the adviser (JSON) that the run was asked for.
    """
    folders = sorted({path.parents[1] for path in plans if path.is_file()})
    index = results / "campaigns" / campaign / "report/index.html"
    lines = list[str]()
    if len(folders) <= MOST_ANSWERED:
        for folder in folders:
            lines += _answers(folder, plans, among=len(folders))
    else:
        lines.append(f"{len(folders)} workloads planned; kareus results --campaign {campaign} lists what they save")
    for folder in sorted({path.parents[2] for path in fleets if path.is_file()})[:MOST_ANSWERED]:
        lines += _fleet_answers(folder, [path for path in fleets if path.is_relative_to(folder)], with_page=not folders)
    for path in answers:
        lines += _advice(path)
    if (len(folders) > 1 or fleets) and index.is_file():
        lines.append(f"page of the campaign: {index}")
    return lines


def _fleet_answers(folder: Path, tables: Sequence[Path], *, with_page: bool) -> Iterator[str]:
    """Yield the answers of the fleets of one workload, the smallest first, and, `with_page`, their page."""
    fleets = sorted(
        (read_table(path, FLEET) for path in tables), key=lambda fleet: (fleet["gpus"][0], fleet["fleet"][0])
    )
    identity = read_provenance(tables[0], FLEET).testbed
    yield f"{folder.name}{f' [{identity.label}]' if identity else ''}"
    engine = trainers()[ENGINE].title
    for fleet in fleets:
        if OURS in fleet["method"]:  # `emulation.methods` may leave it out
            yield f"fleet {fleet['fleet'][0]}: {fastest_answer(fleet, OURS).sentence(engine)}"
    page = folder / "report/fleets.html"
    if with_page and page.is_file():
        yield f"page  {page}"


def _advice(path: Path) -> Iterator[str]:
    """Yield the answer of the adviser in a file, its page, and the commands that go on from it."""
    if path.is_file():
        advice = read_json(path)
        yield from (advice[key] for key in ("headline", "training", "layout") if advice[key])
        yield model_error_line(advice["chips"], advice["ties"]["error"])
        yield f"page  {path.with_name('page.html')}"
        yield from advice["commands"]


def _answers(folder: Path, plans: Sequence[Path], *, among: int) -> Iterator[str]:
    """Yield the answers of one workload, and how wrong they may be: of one among several in short.

    Args:
        folder: of the workload.
        plans: that were asked for, in this order; of several workloads the first of each is answered.
        among: workloads that are answered; one alone also has its page, its plans, and all that its trainer can do.
    """
    from kareus.prediction.errors import plan_error_words  # noqa: PLC0415 - a run that plans nothing need not wait for it

    planned = outcome(folder)
    if planned is None:
        return
    answered = sorted((plan for plan in planned.plans if plan.path in plans), key=lambda plan: plans.index(plan.path))
    workload = load_slice(WorkloadFolder(folder).config("plan"), PlanSlice).workload
    yield f"{planned.workload} [{planned.plans[0].testbed}]"
    yield _sentence(answered[0], workload)
    frontiers, place = read_frontiers(WorkloadFolder(folder), workload), shlex.quote(str(folder))
    obeyed = obeyed_lines(answered[0].plan, workload, frontiers, lambda *what: f"kareus select {asked(*what, place)}")
    yield from obeyed if among == 1 else itertools.islice(obeyed, 1)
    if among == 1:
        yield from (_sentence(plan, workload) for plan in answered[1:])
    if workload.testbed.kind is TestbedKind.SIMULATED:
        yield f"error: {plan_error_words(workload, runner_of(answered[0].plan, workload))}"
    if among == 1:
        yield from [] if planned.page is None else [f"page  {planned.page}"]
        yield from (f"plan  {plan.path}" for plan in answered)


def _sentence(planned: PlanOutcome, workload: Workload) -> str:
    """Return the answer that a plan is, with what runs it where something does."""
    runner = runner_of(planned.plan, workload)
    return planned.answer.sentence("" if runner.overlaps and engine_refusal(workload) else runner.title)
