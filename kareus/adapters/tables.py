"""Tables of what a rank did in another trainer: every microbatch, and every iteration or step."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

_WHERE = (
    Column("rank", pl.Int64, "rank of the trainer"),
    Column("iteration", pl.Int64, "iteration or step, from 0 over all starts that wrote to this folder"),
)
_CLOCKS = (
    Column("frequency_mhz", pl.Int64, "SM clock that was asked for; none where none was, or several", nullable=True),
    Column("observed_mhz", pl.Int64, "SM clock that was read while it ran; none if nothing was read", nullable=True),
)

MICROBATCHES = TableSchema(
    name="microbatches",
    version=1,
    meaning="Instructions that a rank of another trainer ran by a plan, in the last iterations of its run.",
    columns=(
        *_WHERE,
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("chunk", pl.Int64, "chunk of the stage's layers"),
        Column("microbatch", pl.Int64, "microbatch, from 0; -1 for the update of the weights"),
        Column("direction", pl.String, "forward, backward, a half of a backward, or a step of the update"),
        Column("start_s", pl.Float64, "from the start of the iteration on this rank"),
        Column("time_s", pl.Float64, "from its first to its last kernel"),
        Column("energy_j", pl.Float64, "energy of the rank's GPU in that time", nullable=True),
        *_CLOCKS,
    ),
    key=("rank", "iteration", "stage", "chunk", "microbatch", "direction"),
)

STEPS = TableSchema(
    name="steps",
    version=1,
    meaning="Iterations, or steps of the optimizer, that a rank of another trainer ran by a plan or at one clock.",
    columns=(
        *_WHERE,
        Column("selector", pl.String, "selector of the plan, or what else chose the clocks: `driver` if none"),
        Column("time_s", pl.Float64, "as far as the trainer tells the adapter of it", positive=True),
        Column("energy_j", pl.Float64, "energy of the rank's GPU in that time", nullable=True),
        Column("tokens", pl.Int64, "tokens that all replicas trained on, where the adapter is told", nullable=True),
        *_CLOCKS,
    ),
    key=("rank", "iteration"),
)

SWEPT = TableSchema(
    name="swept",
    version=2,
    meaning="What a rank's instructions took when a sweep of clocks visited a clock, mean over the microbatches; "
    "visits in which the GPU was at another clock have no rows.",
    columns=(
        Column("rank", pl.Int64, "rank of the trainer"),
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("chunk", pl.Int64, "chunk of the stage's layers"),
        Column("direction", pl.String, "forward, backward, or a half of a backward"),
        Column("frequency_mhz", pl.Int64, "SM clock of the whole iteration", positive=True),
        Column("visit", pl.Int64, "number of the visit of this clock, from 0 over all starts"),
        Column("microbatches", pl.Int64, "microbatches that the row is the mean of", positive=True),
        Column("time_s", pl.Float64, "of one instruction", positive=True),
        Column("energy_j", pl.Float64, "of one instruction, of the rank's GPU", positive=True),
        Column("is_power_limited", pl.Boolean, "whether the power limit kept the GPU below frequency_mhz meanwhile"),
    ),
    key=("rank", "stage", "chunk", "direction", "frequency_mhz", "visit"),
)
