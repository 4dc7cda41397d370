"""Table of search spaces."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

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
