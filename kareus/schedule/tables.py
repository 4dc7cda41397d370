"""The table of search spaces, and the two functions that write and read its rows."""

from collections.abc import Iterable

import polars as pl

from kareus.artifacts.tables import Column, TableSchema
from kareus.errors import ArtifactError
from kareus.schedule.records import SearchSpace

SPACE = TableSchema(
    name="space",
    version=1,
    meaning="Candidates of every partition: the execution schedules that its search may choose from.",
    columns=(
        Column("partition", pl.String, "name of the partition"),
        Column("candidate", pl.Int64, "number of the candidate within its partition, from 0"),
        Column("frequency_mhz", pl.Int64, "SM clock", positive=True),
        Column("sm_count", pl.Int64, "SMs given to the collective", positive=True),
        Column("launch", pl.String, "operator beside which the collective is launched"),
    ),
    key=("partition", "candidate"),
)


def space_frame(spaces: Iterable[SearchSpace]) -> pl.DataFrame:
    """Return the table `SPACE` of the search spaces of several partitions."""
    return SPACE.frame(
        [
            {
                "partition": space.partition,
                "candidate": candidate,
                "frequency_mhz": frequency_mhz,
                "sm_count": sm_count,
                "launch": launch,
            }
            for space in spaces
            for candidate, (frequency_mhz, sm_count, launch) in enumerate(
                zip(space.frequency_mhz, space.sm_count, space.launch, strict=True)
            )
        ]
    )


def space_of(frame: pl.DataFrame, partition: str) -> SearchSpace:
    """Return the search space of the partition of that name from the table `SPACE`.

    Raises:
        ArtifactError: the table has no candidates of that partition.
    """
    rows = frame.filter(pl.col("partition") == partition).sort("candidate")
    if rows.is_empty():
        names = ", ".join(frame["partition"].unique(maintain_order=True))
        raise ArtifactError(f"no search space of partition '{partition}'; there are: {names}.")
    return SearchSpace(
        partition=partition,
        frequency_mhz=tuple(rows["frequency_mhz"]),
        sm_count=tuple(rows["sm_count"]),
        launch=tuple(rows["launch"]),
    )
