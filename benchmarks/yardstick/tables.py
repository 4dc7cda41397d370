"""The table of runs: every measurement of every search, and what it brought."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

RUNS = TableSchema(
    name="search_runs",
    version=1,
    meaning="Searches of simulated partitions by several strategies, one row for each measurement.",
    columns=(
        Column("workload", pl.String, "name of the workload"),
        Column("partition", pl.String, "name of the partition"),
        Column("truth", pl.String, "`perturbed` (the GPU model's laws, other coefficients) or `other-laws`"),
        Column("seed", pl.Int64, "of the truth, its noise and the search"),
        Column("strategy", pl.String, "`random`, `paper` or `informed`"),
        Column("measured", pl.Int64, "measurements up to and with this one", positive=True),
        Column("candidate", pl.Int64, "number of the candidate in the partition's search space"),
        Column("chosen_by", pl.String, "passes that chose it, with + between them"),
        Column("gpu_s", pl.Float64, "virtual GPU-seconds spent so far, all GPUs of the group", positive=True),
        Column("hypervolume_share", pl.Float64, "share of the exhaustive frontier's hypervolume, free of noise"),
    ),
    key=("workload", "partition", "seed", "strategy", "measured"),
)
