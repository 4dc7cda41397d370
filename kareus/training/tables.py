"""Table of training: what every iteration took on every rank."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

CLOCK = pl.Struct({"frequency_mhz": pl.Int64, "start_s": pl.Float64, "observed_mhz": pl.Int64})
"""A clock that was set, when the driver accepted it (from the start of the iteration), and what was then read back."""

ITERATIONS = TableSchema(
    name="iterations",
    version=2,
    meaning="Iterations that were run, by rank, or played back on a simulated testbed, by stage.",
    columns=(
        Column("method", pl.String, "method of the plan; `none` where nothing was planned"),
        Column("selector", pl.String, "selector of the plan; `none` where nothing was planned"),
        Column("rank", pl.Int64, "rank, or the first of those that the row stands for"),
        Column("gpus", pl.Int64, "ranks that the row stands for: 1 where it was run, a stage's if played back"),
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("iteration", pl.Int64, "iteration, from 0"),
        Column(
            "pipeline_time_s",
            pl.Float64,
            "from its start to the last backward of all ranks: what a plan without the update predicts",
            positive=True,
        ),
        Column("pipeline_energy_j", pl.Float64, "energy of one GPU in that time", nullable=True),
        Column("reduction_time_s", pl.Float64, "from there until its gradients are summed over replicas and stages"),
        Column("reduction_energy_j", pl.Float64, "energy of one GPU in that time", nullable=True),
        Column("update_time_s", pl.Float64, "from there to the end: gradient norm, optimizer step, weights gathered"),
        Column("update_energy_j", pl.Float64, "energy of one GPU in that time", nullable=True),
        Column("time_s", pl.Float64, "whole iteration, with gradient sums and the optimizer's step", positive=True),
        Column("energy_j", pl.Float64, "energy of one GPU in that time; none where nothing measures it", nullable=True),
        Column("includes_update", pl.Boolean, "whether its plan is of the whole iteration, or to the last backward"),
        Column("tokens", pl.Int64, "tokens that all replicas trained on"),
        Column("loss", pl.Float64, "mean over those tokens; none if played back", nullable=True),
        Column("clocks", pl.List(CLOCK), "clocks that were set, in order; start_s is from the iteration's start"),
    ),
    key=("method", "selector", "rank", "iteration"),
)
