"""Writing what was planned in one process as a folder of a workload, with the tables that the workflow writes there.

Commands that take such a folder (`select`, `check-plan`, `export`, `train`) then work on it.
"""

import polars as pl

from kareus.artifacts.files import write_text
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.manifest import SUFFIX, write_manifest
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_table, write_table
from kareus.errors import ArtifactError
from kareus.frontiers.config import frontier_hash
from kareus.frontiers.tables import MICROBATCH
from kareus.partition.config import subject_of
from kareus.partition.extract import partitions_of
from kareus.partition.read import partition_rows, segment_rows
from kareus.partition.tables import PARTITIONS, SEGMENTS
from kareus.pipeline.methods import METHODS
from kareus.pipeline.tables import ITERATION
from kareus.plans.frontiers import Frontiers
from kareus.plans.planning import PlannedTables
from kareus.schedule.tables import SPACE, space_frame
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.workload.config import Workload
from kareus.workload.slices import cut, slice_text

LISTED = ("config", "partition", "schedule", "search", "frontier", "pipeline")
"""Folders of a workload whose files the manifest lists."""


def write_microbatch(
    folder: WorkloadFolder, workload: Workload, microbatch: pl.DataFrame, testbed: TestbedIdentity
) -> None:
    """Write the configuration and the microbatch frontiers of a workload below `folder`."""
    write_text(folder.path / "config/plan.yaml", slice_text(workload, "plan"))
    origin = Provenance(
        config_hash=frontier_hash(workload), subject=subject_of(workload), testbed=testbed, seed=workload.seed
    )
    write_table(folder.path / "frontier/microbatch.parquet", microbatch, MICROBATCH, origin)


def write_frontiers(folder: WorkloadFolder, workload: Workload, frontiers: Frontiers) -> None:
    """Write the configuration and both frontiers of a workload below `folder`: what `select` reads."""
    write_microbatch(folder, workload, frontiers.microbatch, frontiers.testbed)
    origin = Provenance(
        config_hash=content_hash(cut(workload, "pipeline")),
        subject=subject_of(workload),
        testbed=frontiers.testbed,
        seed=workload.seed,
    )
    write_table(folder.path / "pipeline/iteration.parquet", frontiers.iteration, ITERATION, origin)


def write_tables(folder: WorkloadFolder, workload: Workload, planned: PlannedTables | Frontiers) -> None:
    """Write the tables of what was planned, or of what was measured, below `folder`, and their manifest."""
    _forget_tables(folder)
    if isinstance(planned, Frontiers):
        write_frontiers(folder, workload, planned)
    else:
        write_planned(folder, workload, planned)
    _list_tables(folder)


def _list_tables(folder: WorkloadFolder) -> None:
    """Write the manifest of what was planned in a folder but its plans, to which `select` adds: by it one is missed."""
    places = (folder.path / name for name in LISTED)
    write_manifest(folder.path / SUFFIX, [place for place in places if place.is_dir()])


def _forget_tables(folder: WorkloadFolder) -> None:
    """Remove that manifest, before other tables are written: it would call them damaged if they were its last."""
    (folder.path / SUFFIX).unlink(missing_ok=True)


def planned_methods(folder: WorkloadFolder) -> tuple[str, ...]:
    """Return the names of the methods that were planned in a folder; none where nothing that can be read was."""
    try:
        names = set(read_table(folder.iteration, ITERATION)["method"])
    except ArtifactError:
        return ()
    return tuple(method.name for method in METHODS if method.name in names)


def write_planned(folder: WorkloadFolder, workload: Workload, planned: PlannedTables) -> None:
    """Write the configuration and the tables of a workload below `folder`."""
    subject = subject_of(workload)

    def write(place: str, schema: TableSchema, frame: pl.DataFrame, config_hash: str, *, measured: bool = True) -> None:
        origin = Provenance(config_hash=config_hash, subject=subject)
        if measured:
            origin = Provenance(config_hash=config_hash, subject=subject, testbed=planned.testbed, seed=workload.seed)
        write_table(folder.path / place, frame, schema, origin)

    def slice_hash(stage: str) -> str:
        return content_hash(cut(workload, stage))

    partitions = partitions_of(planned.graphs, cut(workload, "partition"))
    extracted = (
        ("segments", SEGMENTS, segment_rows(planned.graphs)),
        ("partitions", PARTITIONS, partition_rows(partitions)),
    )
    write_frontiers(folder, workload, planned.frontiers)
    for name, schema, rows in extracted:
        write(f"partition/{name}.parquet", schema, schema.frame(rows), slice_hash("partition"), measured=False)
    spaces = space_frame(planned.spaces.values())
    write("schedule/space.parquet", SPACE, spaces, slice_hash("schedule"), measured=False)
    for name, tables in planned.searches.items():
        for schema, frame in ((CANDIDATES, tables.candidates), (ROUNDS, tables.rounds), (PROPOSALS, tables.proposals)):
            write(f"search/{name}/{schema.name}.parquet", schema, frame, slice_hash("search"))
