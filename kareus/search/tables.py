"""Tables of a partition's search: every candidate it measured, how each round went, and what choosing took.

The last is the one table of planning that is not the same when it is made again: its numbers are of the machine that
planned, not of the testbed. They have a table of their own so that all others are the same.
"""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema
from kareus.profile.tables import IS_POWER_LIMITED, TEMPERATURE

CANDIDATES = TableSchema(
    name="candidates",
    version=3,
    meaning="Candidates of one partition in the order of measuring: why each was chosen, predicted, and measured.",
    columns=(
        Column("candidate", pl.Int64, "number of the candidate in the partition's search space"),
        Column("round", pl.Int64, "from 0, where `informed` only looks and others measure their initial design"),
        Column(
            "chosen_by",
            pl.List(pl.String),
            "every pass that chose it: `initial`; `improvement` (informed); `total`, `dynamic`, `static`, "
            "`uncertainty` (paper); `random`; `all` (exhaustive)",
        ),
        Column("frequency_mhz", pl.Int64, "SM clock", positive=True),
        Column("sm_count", pl.Int64, "SMs given to the collective", positive=True),
        Column("launch", pl.String, "operator beside which the collective is launched"),
        Column("predicted_time_s", pl.Float64, "surrogate's prediction before measuring", nullable=True),
        Column("predicted_dynamic_energy_j", pl.Float64, "surrogate's prediction before measuring", nullable=True),
        Column("time_s", pl.Float64, "measured mean time of one execution", positive=True),
        Column("energy_j", pl.Float64, "measured mean energy of one execution on one GPU", positive=True),
        TEMPERATURE,
        IS_POWER_LIMITED,
        Column("dynamic_energy_j", pl.Float64, "energy_j less static power times time_s"),
        Column("on_frontier", pl.Boolean, "whether no measured candidate has less time and less dynamic energy"),
    ),
    key=("candidate",),
)

ROUNDS = TableSchema(
    name="rounds",
    version=4,
    meaning="Rounds of one partition's search.",
    columns=(
        Column("round", pl.Int64, "from 0, where `informed` only looks and others measure their initial design"),
        Column("measured", pl.Int64, "candidates measured up to and with this round"),
        Column("looked", pl.Int64, "candidates looked at (time alone, after warming up) up to and with this round"),
        Column("hypervolume", pl.Float64, "of the measured (time, total energy), each divided by its maximum so far"),
        Column(
            "improvement",
            pl.Float64,
            "relative improvement over the round before, on this round's scale",
            nullable=True,
        ),
        Column(
            "measuring_s",
            pl.Float64,
            "testbed's clock spent on looks and measurements in this round (virtual if simulated)",
        ),
        Column("looking_s", pl.Float64, "of that, on looks"),
        Column("strategy", pl.String, "strategy of the search: `informed`, `paper`, `random` or `exhaustive`"),
        Column(
            "gpus", pl.Int64, "GPUs that are busy meanwhile: the group of the partition's collective", positive=True
        ),
        Column(
            "time_noise",
            pl.Float64,
            "relative standard deviation of one measured time that `informed` reckoned with after this round",
            nullable=True,
        ),
        Column("power_noise", pl.Float64, "likewise, of one measured power", nullable=True),
        Column("stop", pl.String, "why the search ended after this round; empty if it went on"),
        Column("is_cut_short", pl.Boolean, "whether the budget ended it before its stopping rule was met"),
        Column(
            "remaining",
            pl.Float64,
            "share of the hypervolume that `informed` then predicted the other candidates to add: what that may cost",
            nullable=True,
        ),
    ),
    key=("round",),
)

PROPOSALS = TableSchema(
    name="proposals",
    version=1,
    meaning="What choosing candidates took in each round of one partition's search; differs from run to run.",
    columns=(
        Column("round", pl.Int64, "round that was proposed; one after the last if it was decided there to end"),
        Column("proposing_s", pl.Float64, "wall clock of the planning machine spent on surrogates and acquisition"),
    ),
    key=("round",),
)
