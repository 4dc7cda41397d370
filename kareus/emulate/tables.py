"""Tables of an emulated fleet. Every row names its fleet, so that tables of a sweep can be read together."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

_FLEET = (
    Column("fleet", pl.String, "name of the fleet: its folder"),
    Column("pipelines", pl.Int64, "data-parallel replicas of the pipeline", positive=True),
    Column("num_microbatches", pl.Int64, "microbatches of one pipeline in one iteration", positive=True),
    Column("gpus", pl.Int64, "GPUs of all pipelines", positive=True),
    Column("method", pl.String, "whose plans these are, as in the table `iteration`"),
)
_POINTS = Column("points", pl.List(pl.Int64), "per instruction, the `point` of its microbatch frontier")

FLEET = TableSchema(
    name="fleet",
    version=2,
    meaning="Plans of a fleet's iteration, by method: all run one plan; reducing gradients is in it or after it.",
    columns=(
        *_FLEET,
        Column("plan", pl.Int64, "number of the plan within its method, by rising time"),
        Column("time_s", pl.Float64, "iteration time: of the pipeline, and of what is exposed of the reduction"),
        Column("pipeline_time_s", pl.Float64, "makespan of one pipeline", positive=True),
        Column(
            "reduction_s",
            pl.Float64,
            "time of reducing the gradients over the replicas, hidden or exposed; 0 where plans have it",
        ),
        Column(
            "energy_j",
            pl.Float64,
            "energy of all GPUs over the iteration",
            positive=True,
        ),
        Column("static_energy_j", pl.Float64, "static power times iteration time times GPUs"),
        Column("dynamic_energy_j", pl.Float64, "energy_j less static_energy_j"),
        Column("power_w", pl.Float64, "mean power of all GPUs over the iteration", positive=True),
        Column(
            "lower_bound_j",
            pl.Float64,
            "energy that no plan of its method can undercut in its time; off the frontier, with waiting at static "
            "power for what is left of it",
        ),
        Column(
            "on_frontier",
            pl.Boolean,
            "whether no plan of its method has less time and less energy; others are slower and use less energy than "
            "one on the frontier that then waits at static power, for caps and hours",
        ),
        Column("gap", pl.Float64, "certified gap: energy_j / lower_bound_j - 1, at the plan's own time"),
        _POINTS,
    ),
    key=("fleet", "method", "plan"),
)

STRAGGLERS = TableSchema(
    name="stragglers",
    version=1,
    meaning="One pipeline is slower than the others' fastest plan, which all wait for: what adapting to it saves.",
    columns=(
        *_FLEET,
        Column("slowdown", pl.Float64, "time of the slow pipeline over that of the fastest plan"),
        Column("time_s", pl.Float64, "iteration time, which the slow pipeline sets", positive=True),
        Column("plan_time_s", pl.Float64, "makespan of the plan that the others take", positive=True),
        Column("waiting_energy_j", pl.Float64, "energy of all GPUs if the others keep the fastest plan and wait"),
        Column("energy_j", pl.Float64, "energy of all GPUs if the others take the plan that just meets it"),
        Column("saving_percent", pl.Float64, "what adapting saves of waiting_energy_j"),
        Column("gap", pl.Float64, "certified gap of energy_j to what any plans of the others could reach"),
        _POINTS,
    ),
    key=("fleet", "method", "slowdown"),
)

POWER_CAPS = TableSchema(
    name="power_caps",
    version=2,
    meaning="The fastest plan of a fleet within a mean power, waiting included; empty where even waiting draws more.",
    columns=(
        *_FLEET,
        Column("cap_w", pl.Float64, "power that all GPUs together may draw, on average over an iteration"),
        Column("time_s", pl.Float64, "iteration time, with the wait", nullable=True),
        Column("waiting_s", pl.Float64, "of that, seconds that all GPUs wait at static power", nullable=True),
        Column("energy_j", pl.Float64, "energy of all GPUs over the iteration, with the wait", nullable=True),
        Column("power_w", pl.Float64, "mean power of all GPUs", nullable=True),
        Column("points", pl.List(pl.Int64), "as in the table `fleet`", nullable=True),
    ),
    key=("fleet", "method", "cap_w"),
)

HOURS = TableSchema(
    name="hours",
    version=2,
    meaning="What a fleet runs in every hour of a price or carbon series, so that its iterations are done by the end.",
    columns=(
        *_FLEET,
        Column(
            "policy",
            pl.String,
            "`hourly`: plans chosen by the hour; `steady`: the one plan that is best from the start; `none`: not even "
            "the fastest plan finishes in the hours",
        ),
        Column("hour", pl.Int64, "hour of the series, from 0; empty for `none`, as what follows", nullable=True),
        Column("plan", pl.Int64, "plan of the table `fleet`; empty while the fleet waits", nullable=True),
        Column("share", pl.Float64, "share of the hour", nullable=True),
        Column("iterations", pl.Float64, "iterations done in it; for `none`, the most that can be done in all hours"),
        Column("energy_j", pl.Float64, "energy of all GPUs in it; static power while the fleet waits", nullable=True),
        Column("unit", pl.String, "of the series: `price_per_kwh` or `carbon_g_per_kwh`"),
        Column("value", pl.Float64, "of the series in this hour", nullable=True),
        Column(
            "charge",
            pl.Float64,
            "energy at that value: money in the series' currency, or grams of CO2",
            nullable=True,
        ),
    ),
    key=("fleet", "method", "policy", "hour", "plan"),
)
