"""Command `check-plan`: validate a plan file against its seal, its workload and the frontiers it was selected from."""

import argparse
import logging
import shlex
from collections import defaultdict
from pathlib import Path

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import check_config, check_subject
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table
from kareus.errors import ArtifactError
from kareus.partition.config import subject_of
from kareus.partition.names import expected_partitions
from kareus.plans.build import plan_of_row
from kareus.plans.check import Launches, check_plan
from kareus.plans.document import Plan
from kareus.plans.file import read_plan
from kareus.plans.frontiers import Frontiers, read_frontiers
from kareus.plans.grid_selection import check_over_time
from kareus.plans.locate import plan_path
from kareus.plans.request import check_frontiers, check_limit
from kareus.plans.selectors import OVER_TIME, parse_selector
from kareus.profile.programs import Execution
from kareus.schedule.tables import SPACE
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice, cut

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the plan and the workload that it should be for."""
    parser.add_argument("plan", type=Path, help="plan file, or the folder of a workload that has one plan")
    parser.add_argument("--folder", type=Path, help="results folder of the workload (default: the one the plan is in)")


def run(arguments: argparse.Namespace) -> None:
    """Check a plan; log success, and what could not be checked."""
    arguments.plan = plan_path(arguments.plan)
    home = workload_folder(arguments.plan, arguments.folder)
    if arguments.folder is None and not home.has("config/plan.yaml"):
        plan = read_plan(arguments.plan)
        check_limit(plan, arguments.plan)
        logger.info(
            "%s: a plan as it was written, of %d instructions for %s; not checked against its workload and frontiers, "
            "since it is not in a results folder: add --folder %s",
            arguments.plan,
            plan.instructions,
            plan.workload,
            _likely_folder(plan.workload),
        )
        return
    plan, _ = read_checked_plan(arguments.plan, arguments.folder)
    logger.info("%s: a valid plan of %d instructions for %s", arguments.plan, plan.instructions, plan.workload)


def read_checked_plan(path: Path, folder: Path | None) -> tuple[Plan, Workload]:
    """Read the plan at `path` and the workload that it is for; `folder` is the workload's if the plan is elsewhere.

    Where the folder has no frontiers, times and energies can only be checked against each other; a log line says so.

    Raises:
        ArtifactError: as `read_plan`, `check_plan` and `check_frontiers`.
    """
    home = workload_folder(path, folder)
    plan = read_plan(path)
    if folder is None and not home.has("config/plan.yaml"):
        raise ArtifactError(
            f"{path}: not in the folder that it was planned in; add --folder {_likely_folder(plan.workload)}."
        )
    workload = load_slice(home.config("plan"), PlanSlice).workload
    overlaps = any(i.execution is Execution.OVERLAP for stage in plan.stages for i in stage.instructions)
    launches = _launches(home, workload) if overlaps and expected_partitions(workload) else {}
    check_plan(plan, workload, home.name, path, launches)
    if home.has("frontier/microbatch.parquet") and home.has("pipeline/iteration.parquet"):
        frontiers = read_frontiers(home, workload)
        check_frontiers(plan, frontiers, cut(workload, "pipeline"), path)
        _check_over_time(plan, workload, frontiers, path)
    else:
        check_limit(plan, path)
        logger.info("%s: times and energies are not checked, since %s has no frontiers", path, home.path)
    return plan, workload


def _check_over_time(plan: Plan, workload: Workload, frontiers: Frontiers, path: Path) -> None:
    """Check a plan whose selector limits power over an iteration."""
    selector = parse_selector(plan.selector)
    if selector.goal in OVER_TIME:
        plans = frontiers.plans(plan.method)
        check_over_time(
            plan,
            selector,
            plans,
            lambda row: plan_of_row(workload, plan.workload, plan.selector, row, frontiers),
            workload.gpu,
            path,
        )


def workload_folder(path: Path, folder: Path | None) -> WorkloadFolder:
    """Results of the workload of the plan at `path`: `folder`, or the folder that the plan's is in."""
    return WorkloadFolder(folder or path.resolve().parent.parent)


def _likely_folder(workload: str) -> str:
    """Return the folder of a workload below this one, as it is typed; the form of its name where there is none."""
    here = sorted(path.parents[1] for path in Path().glob(f"*/{workload}/config/plan.yaml"))
    return shlex.quote(str(here[0])) if here else f"FOLDER/{workload}"


def _launches(folder: WorkloadFolder, workload: Workload) -> Launches:
    """Launch operators in the search space of every partition, in the order of execution."""
    launches: dict[str, dict[str, None]] = defaultdict(dict)
    provenance = read_provenance(folder.space, SPACE)
    check_subject(subject_of(workload), {str(folder.space): provenance})
    check_config(content_hash(cut(workload, "schedule")), str(folder.space), provenance)
    for partition, launch in read_table(folder.space, SPACE).select("partition", "launch").iter_rows():
        launches[partition][launch] = None
    return launches
