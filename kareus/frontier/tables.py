"""Table of microbatch frontiers: what one instruction of a stage can cost, and how."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

CHOICE = pl.Struct({"partition": pl.String, "sm_count": pl.Int64, "launch": pl.String})

MICROBATCH = TableSchema(
    name="microbatch",
    version=1,
    meaning="Time-energy points of one instruction, by stage, direction and method.",
    columns=(
        Column(
            "method",
            pl.String,
            "`sequential`, `nanobatching`, `kareus` or one of its ablations: what the point may use",
        ),
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("direction", pl.String, "`forward` or `backward`; a backward includes its recomputation"),
        Column("point", pl.Int64, "number of the point within (method, stage, direction), by rising time"),
        Column("execution", pl.String, "`sequential`, `nanobatching` or `overlap` (partitioned overlap)"),
        Column("frequency_mhz", pl.Int64, "SM clock during the whole instruction", positive=True),
        Column("time_s", pl.Float64, "duration of the instruction", positive=True),
        Column("energy_j", pl.Float64, "energy of one GPU of the stage", positive=True),
        Column("dynamic_energy_j", pl.Float64, "energy_j less static power times time_s"),
        Column(
            "effective_energy_j", pl.Float64, "energy_j less blocking power times time_s: what the pipeline minimises"
        ),
        Column(
            "on_frontier", pl.Boolean, "whether no other point of its method has less time and less effective energy"
        ),
        Column("choices", pl.List(CHOICE), "per partition, SMs and launch operator; empty unless `overlap`"),
    ),
    key=("method", "stage", "direction", "point"),
)
