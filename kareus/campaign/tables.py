"""Table of a campaign: its workloads, fleets and sweeps, with the reasons of refusals."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

CAMPAIGN = TableSchema(
    name="campaign",
    version=1,
    meaning="What belongs to a campaign, planned or refused, in the order of its files.",
    columns=(
        Column("part", pl.String, "campaign that lists it: this one, or one that it names"),
        Column("kind", pl.String, "`workload`, `fleet` or `sweep` (of the profiler)"),
        Column("workload", pl.String, "readable name; its folder under `results/`"),
        Column(
            "name",
            pl.String,
            "of a fleet: its folder below the workload's `emulate/`; of a sweep: below its `profile/`",
            nullable=True,
        ),
        Column("refusal", pl.String, "why it cannot run", nullable=True),
        Column("overrides", pl.List(pl.String), "overrides that give it"),
        Column("model", pl.String, "name of the model"),
        Column("gpu", pl.String, "name of the GPU"),
        Column("parallelism", pl.String, "degrees, such as `pp2-cp2-tp4`; those of 1 are left out, but for pp and tp"),
        Column("microbatch_size", pl.Int64, "sequences of a microbatch", positive=True),
        Column("sequence_length", pl.Int64, "tokens of a sequence", positive=True),
        Column("num_microbatches", pl.Int64, "of one pipeline in one iteration; of a fleet its own", positive=True),
        Column("gpus", pl.Int64, "GPUs of the whole job", positive=True),
    ),
    key=("part", "kind", "workload", "name"),
)
