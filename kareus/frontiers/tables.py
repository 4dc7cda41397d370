"""Table of microbatch frontiers: what one instruction of a stage can cost, and how."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema
from kareus.frontiers.compose import MOST_POINTS
from kareus.profile.tables import DIRECTION_MEANING

CHOICE = pl.Struct({"partition": pl.String, "sm_count": pl.Int64, "launch": pl.String})

MICROBATCH = TableSchema(
    name="microbatch",
    version=5,
    meaning="Time-energy points of one instruction, by stage, chunk, direction and method.",
    columns=(
        Column(
            "method",
            pl.String,
            "`sequential`, `nanobatching`, `kareus` or one of its ablations: what the point may use",
        ),
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("chunk", pl.Int64, "chunk of the stage's layers, from 0; always 0 unless the pipeline is interleaved"),
        Column(
            "direction",
            pl.String,
            f"{DIRECTION_MEANING}; of the update of the weights `gradient-reduction`, `embedding-exchange` or `update`",
        ),
        Column("point", pl.Int64, "number of the point within (method, stage, chunk, direction), by rising time"),
        Column("execution", pl.String, "`sequential`, `nanobatching` or `overlap` (partitioned overlap)"),
        Column("frequency_mhz", pl.Int64, "SM clock during the whole instruction", positive=True),
        Column("time_s", pl.Float64, "duration of the instruction", positive=True),
        Column("energy_j", pl.Float64, "energy of one GPU of the stage that trains for long", positive=True),
        Column("dynamic_energy_j", pl.Float64, "energy_j less static power times time_s"),
        Column("effective_energy_j", pl.Float64, "energy_j less blocking power times time_s: what frontiers minimise"),
        Column(
            "is_thinned",
            pl.Boolean,
            f"whether more than {MOST_POINTS} combinations of options were non-dominated at its clock and as many kept",
        ),
        Column("time_error_s", pl.Float64, "standard error of time_s from the noise of measuring"),
        Column("energy_error_j", pl.Float64, "standard error of energy_j from the noise of measuring"),
        Column(
            "on_frontier",
            pl.Boolean,
            "whether no other point of its method has less time and less effective energy; at the power limit, nor "
            "costs the same at a lower clock",
        ),
        Column("choices", pl.List(CHOICE), "per partition, SMs and launch operator; empty unless `overlap`"),
    ),
    key=("method", "stage", "chunk", "direction", "point"),
)
