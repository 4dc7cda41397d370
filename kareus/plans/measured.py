"""Planning from microbatch frontiers that were measured in place: on a user's own job, whatever its network.

Such a folder is that of a workload without partitions, search spaces and searches: its configuration and the table
`MICROBATCH`, whose points are whole instructions at one clock each. The iteration is planned from it as from any other.
"""

from kareus.artifacts.configuration import load_slice, narrowed
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import check_config, check_subject
from kareus.artifacts.records import differences, leaves, to_plain
from kareus.artifacts.tables import read_provenance, read_table
from kareus.errors import ArtifactError, ConfigError
from kareus.frontiers.config import FrontierSlice, frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.frontiers import solve_iteration
from kareus.plans.frontiers import Frontiers
from kareus.workload.config import Workload
from kareus.workload.slices import PlanSlice, cut


def measured_workload(folder: WorkloadFolder) -> Workload:
    """Return the workload whose instructions were measured into `folder`.

    Raises:
        ArtifactError: nothing was measured there, or not yet all.
    """
    _check_measured(folder)
    return load_slice(folder.config("plan"), PlanSlice).workload


def plan_measured(folder: WorkloadFolder, workload: Workload) -> Frontiers:
    """Plan the iteration of a workload from what was measured of its instructions.

    Args:
        folder: with the measured microbatch frontiers.
        workload: that of the folder, or one that differs only in what the pipeline stage reads, such as the number of
            microbatches.

    Raises:
        ConfigError: the workload plans an update of the weights, which was not measured.
        ArtifactError: there are no microbatch frontiers, or they are damaged or of another workload.
    """
    check_no_update(workload)
    _check_measured(folder)
    _check_same(folder, workload)
    path = folder.microbatch
    origin = read_provenance(path, MICROBATCH)
    check_subject(subject_of(workload), {str(path): origin})
    check_config(frontier_hash(workload), str(path), origin)
    if origin.testbed is None:
        raise ArtifactError(f"{path}: records no testbed; measure it anew.")
    microbatch = read_table(path, MICROBATCH)
    iteration, _ = solve_iteration(cut(workload, "pipeline"), microbatch)
    return Frontiers(iteration=iteration, microbatch=microbatch, testbed=origin.testbed)


def check_no_update(workload: Workload) -> None:
    """Check that the iteration of a workload is forwards and backwards, which are what is measured in place.

    Raises:
        ConfigError: it includes the update of the weights.
    """
    if workload.iteration.include_update:
        raise ConfigError(
            "iteration.include_update=true: forwards and backwards are measured in place, the update is not; give "
            "iteration.include_update=false."
        )


def _check_same(folder: WorkloadFolder, workload: Workload) -> None:
    """Check that a workload is the one that was measured into `folder`, in all that its instructions depend on."""
    measured = load_slice(folder.config("plan"), PlanSlice).workload
    there, here = (to_plain(narrowed(each, FrontierSlice)) for each in (measured, workload))
    for key, value in differences(there, here).items():
        raise ArtifactError(
            f"{folder.path}: made for another workload: {key}={value} here, {dict(leaves(there)).get(key)} there; give "
            "the overrides of the measured workload, and others only of what the pipeline reads."
        )


def _check_measured(folder: WorkloadFolder) -> None:
    if not folder.has("frontier/microbatch.parquet"):
        raise ArtifactError(
            f"{folder.path}: has no measured frontiers; give the folder of a `Profiling` whose job has logged how well "
            "its frontiers are known."
        )
