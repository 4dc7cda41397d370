"""The frontiers of a workload: what plans are selected from, and checked against."""

from dataclasses import dataclass

import polars as pl

from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import TestbedIdentity, check_config, check_subject, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import read_provenance, read_table
from kareus.errors import ArtifactError
from kareus.frontiers.config import frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.pipeline.tables import ITERATION
from kareus.workload.config import Workload
from kareus.workload.slices import cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontiers:
    """Both frontiers of one workload, measured on one testbed."""

    iteration: pl.DataFrame
    """Table `ITERATION`."""
    microbatch: pl.DataFrame
    """Table `MICROBATCH`."""
    testbed: TestbedIdentity

    @property
    def methods(self) -> list[str]:
        """Names of the methods that were planned, in the order of the table."""
        return self.iteration["method"].unique(maintain_order=True).to_list()

    def plans(self, method: str) -> pl.DataFrame:
        """Rows of the iteration frontier of `method`; none if it was not planned."""
        return self.iteration.filter(pl.col("method") == method)


def read_frontiers(folder: WorkloadFolder, workload: Workload) -> Frontiers:
    """Read the frontiers in the results `folder` of `workload`.

    Raises:
        ArtifactError: a table is missing, damaged, of another workload or configuration, or says no testbed; or the
            two come from different testbeds.
    """
    testbed = _testbed(folder, workload)
    return Frontiers(
        iteration=read_table(folder.iteration, ITERATION),
        microbatch=read_table(folder.microbatch, MICROBATCH),
        testbed=testbed,
    )


def _testbed(folder: WorkloadFolder, workload: Workload) -> TestbedIdentity:
    """The testbed of both frontiers, once they are the workload's."""
    iteration, microbatch = str(folder.iteration), str(folder.microbatch)
    origins = {
        iteration: read_provenance(folder.iteration, ITERATION),
        microbatch: read_provenance(folder.microbatch, MICROBATCH),
    }
    check_subject(subject_of(workload), origins)
    check_config(content_hash(cut(workload, "pipeline")), iteration, origins[iteration])
    check_config(frontier_hash(workload), microbatch, origins[microbatch])
    origin = derived(content_hash(workload), origins)
    if origin.testbed is None:
        raise ArtifactError(f"{iteration}: records no testbed; rerun the stage that makes it.")
    if origin.seed != workload.seed:
        raise ArtifactError(f"{iteration}: measured with seed {origin.seed}, the workload has {workload.seed}; rerun.")
    return origin.testbed
