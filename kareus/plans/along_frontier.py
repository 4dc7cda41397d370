"""All plans of an iteration frontier, for those that change from one to another while they run."""

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.records import suggest
from kareus.errors import ConfigError
from kareus.plans.build import plan_of_row
from kareus.plans.document import Plan
from kareus.plans.frontiers import read_frontiers
from kareus.workload.naming import plain_name
from kareus.workload.slices import PlanSlice


def frontier_plans(folder: WorkloadFolder, method: str) -> tuple[Plan, ...]:
    """Return the plans of a method's iteration frontier, by rising time; their selectors are deadlines at their times.

    Args:
        folder: of a workload that was planned.
        method: whose frontier.

    Raises:
        ConfigError: the method was not planned.
        ArtifactError: a table is missing, damaged or of another workload.
    """
    workload = load_slice(folder.config("plan"), PlanSlice).workload
    frontiers = read_frontiers(folder, workload)
    if method not in frontiers.methods:
        raise ConfigError(f"{folder.path}: method {method}: not planned; {suggest(method, frontiers.methods)}.")
    rows = frontiers.plans(method).sort("time_s").to_dicts()
    name = plain_name(workload)
    return tuple(plan_of_row(workload, name, f"deadline={row['time_s']:.9g}s", row, frontiers) for row in rows)
