"""Tables of the report: what its figures show and no other stage writes."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema
from kareus.frontier.tables import CHOICE

_PLAN = (
    Column("plan_name", pl.String, "name of the plan: of its file, or `baseline`"),
    Column("method", pl.String, "method whose plan it is"),
)

TIMELINE = TableSchema(
    name="timeline",
    version=1,
    meaning="Instructions of the chosen plans and of the baseline's fastest, as one iteration runs them.",
    columns=(
        *_PLAN,
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("position", pl.Int64, "place in the stage's order, from 0"),
        Column("direction", pl.String, "`forward`, `backward`, or its parts `input-gradient` and `weight-gradient`"),
        Column("microbatch", pl.Int64, "microbatch, from 0"),
        Column("chunk", pl.Int64, "chunk of the stage's layers, from 0"),
        Column("execution", pl.String, "`sequential`, `nanobatching` or `overlap` (partitioned overlap)"),
        Column("frequency_mhz", pl.Int64, "SM clock during the whole instruction", positive=True),
        Column("start_s", pl.Float64, "earliest start, from that of the iteration"),
        Column("time_s", pl.Float64, "duration", positive=True),
        Column("energy_j", pl.Float64, "energy of one GPU of the stage", positive=True),
        Column("power_w", pl.Float64, "mean power of one GPU of the stage", positive=True),
        Column("choices", pl.List(CHOICE), "per partition, SMs and launch operator; empty unless `overlap`"),
    ),
    key=("plan_name", "stage", "position"),
)

POWER = TableSchema(
    name="power",
    version=1,
    meaning="Power of all GPUs over one iteration of the chosen plans and of the baseline's fastest.",
    columns=(
        *_PLAN,
        Column("time_s", pl.Float64, "from the start of the iteration; the power holds until the next row"),
        Column("power_w", pl.Float64, "of all GPUs: of instructions their mean, blocking power where a stage waits"),
    ),
    key=("plan_name", "time_s"),
)
