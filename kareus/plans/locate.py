"""Finding what a command needs in the folder of a workload, where there is only one thing that can be meant."""

from pathlib import Path

from kareus.artifacts.layout import WorkloadFolder
from kareus.errors import ArtifactError

RESULTS = Path("results")
EXPORTED = ".trace.json"
"""End of the names of JSON that `kareus export` writes beside plans."""
MOST_NAMED = 8
"""Names that a message lists."""


def plan_path(given: Path) -> Path:
    """Return the plan file that a path names: itself, or the only plan in the folder of a workload.

    Raises:
        ArtifactError: it is a folder with no plan, or with several.
    """
    if not given.is_dir():
        return given
    plans = plan_files(given.parent if given.name == "plan" else given)
    if not plans:
        raise ArtifactError(f"{given}: a folder without a plan; write one with kareus select SELECTOR FOLDER.")
    if len(plans) > 1:
        raise ArtifactError(f"{given}: has {len(plans)} plans; name one of them: {_named(plans)}.")
    return plans[0]


def plan_files(folder: Path) -> list[Path]:
    """Return the plan files of the folder of a workload, sorted; exported ones beside them are none."""
    return sorted(path for path in WorkloadFolder(folder).plans.glob("*.json") if not path.name.endswith(EXPORTED))


def workload_path(given: Path) -> Path:
    """Return the file of a resolved workload that a path names: itself, or that of the folder of a workload."""
    return WorkloadFolder(given).config("workload") if given.is_dir() else given


def only_workload(results: Path = RESULTS) -> Path:
    """Return the folder of the only workload that was planned in a folder of results.

    Raises:
        ArtifactError: none was, or several were.
    """
    folders = sorted(path.parents[1] for path in results.glob("*/pipeline/iteration.parquet"))
    if not folders:
        raise ArtifactError(f"{results}: no workload was planned there; run snakemake, or name the folder of one.")
    if len(folders) > 1:
        raise ArtifactError(f"{results}: has {len(folders)} planned workloads; name one of them: {_named(folders)}.")
    return folders[0]


def _named(paths: list[Path]) -> str:
    more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return ", ".join(map(str, paths[:MOST_NAMED])) + more
