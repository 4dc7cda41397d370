"""Tables of the pipeline stage: its instructions, and the iteration frontier of every method."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

INSTRUCTIONS = TableSchema(
    name="instructions",
    version=2,
    meaning="Instructions of one iteration of one pipeline, and what each waits for.",
    columns=(
        Column("instruction", pl.Int64, "number of the instruction, from 0, stage by stage in order of execution"),
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("position", pl.Int64, "place in the stage's order, from 0"),
        Column(
            "direction",
            pl.String,
            "`forward`, `backward`, or its parts `input-gradient` and `weight-gradient`; of the update of the weights "
            "`gradient-reduction`, `embedding-exchange` or `update`",
        ),
        Column("microbatch", pl.Int64, "microbatch, from 0; -1 for the update of the weights, which is of all"),
        Column(
            "depends_on",
            pl.List(pl.Int64),
            "instructions that must have ended (and sent, across stages) before it starts",
        ),
        Column("chunk", pl.Int64, "chunk of the stage's layers, from 0; always 0 unless the pipeline is interleaved"),
    ),
    key=("instruction",),
)

ITERATION = TableSchema(
    name="iteration",
    version=3,
    meaning="Plans of an iteration, by method: the time-energy frontier, each plan made of real points only.",
    columns=(
        Column(
            "method",
            pl.String,
            "`sequential`, `nanobatching`, each alone and with `+perseus`, `kareus` or one of its ablations",
        ),
        Column("plan", pl.Int64, "number of the plan within its method, by rising time"),
        Column("time_s", pl.Float64, "iteration time: the makespan of the pipeline", positive=True),
        Column(
            "energy_j",
            pl.Float64,
            "energy of all GPUs over an iteration of a long training; at the temperatures of profiling where that of "
            "the air is not known",
            positive=True,
        ),
        Column("static_energy_j", pl.Float64, "static power times iteration time times GPUs"),
        Column("dynamic_energy_j", pl.Float64, "energy_j less static_energy_j"),
        Column("deadline_s", pl.Float64, "deadline for which the plan was solved", positive=True),
        Column(
            "lower_bound_j", pl.Float64, "energy that no plan of its method can undercut in its time (linear program)"
        ),
        Column("gap", pl.Float64, "certified gap: energy_j / lower_bound_j - 1, at the plan's own time"),
        Column("points", pl.List(pl.Int64), "per instruction, the `point` of its microbatch frontier"),
    ),
    key=("method", "plan"),
)
