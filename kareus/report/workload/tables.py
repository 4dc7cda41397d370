"""Tables of the report: what its figures and tables show and no other stage writes."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema
from kareus.frontiers.tables import CHOICE

_PLAN = (
    Column("plan_name", pl.String, "name of the plan: of its file, or `baseline`"),
    Column("method", pl.String, "method whose plan it is"),
)

TIMELINE = TableSchema(
    name="timeline",
    version=1,
    meaning="Instructions of the chosen plans and of the baseline, as one iteration runs them.",
    columns=(
        *_PLAN,
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("position", pl.Int64, "place in the stage's order, from 0"),
        Column(
            "direction",
            pl.String,
            "`forward`, `backward`, or its parts `input-gradient` and `weight-gradient`; of the update of the weights "
            "`gradient-reduction`, `embedding-exchange` or `update`",
        ),
        Column("microbatch", pl.Int64, "microbatch, from 0; -1 for the update of the weights"),
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
    meaning="Power of all GPUs over one iteration of the chosen plans and of the baseline.",
    columns=(
        *_PLAN,
        Column("time_s", pl.Float64, "from the start of the iteration; the power holds until the next row"),
        Column(
            "power_w",
            pl.Float64,
            "of all GPUs: of instructions their mean, that of waiting at its clock where a stage waits",
        ),
    ),
    key=("plan_name", "time_s"),
)

_MEMBER = (
    Column("part", pl.String, "campaign that lists it: this one, or one that it names"),
    Column("workload", pl.String, "name of the workload: its folder"),
    Column("testbed", pl.String, "what was measured on, such as `simulated testbed, A100-SXM4-40GB`"),
)
_SHAPE = (
    Column("model", pl.String, "name of the model"),
    Column("gpu", pl.String, "name of the GPU"),
    Column("parallelism", pl.String, "degrees, such as `pp2-cp2-tp4`; those of 1 are left out, but for pp and tp"),
    Column("microbatch_size", pl.Int64, "sequences of a microbatch", positive=True),
    Column("sequence_length", pl.Int64, "tokens of a sequence", positive=True),
    Column("num_microbatches", pl.Int64, "of one pipeline in one iteration", positive=True),
    Column("gpus", pl.Int64, "GPUs of the whole job", positive=True),
)
_COMPARED = (
    Column("method", pl.String, "method that is compared"),
    Column("time_s", pl.Float64, "least iteration time", positive=True),
    Column("energy_j", pl.Float64, "energy of that plan, of all GPUs", positive=True),
    Column("static_energy_j", pl.Float64, "of it, static power times time"),
    Column("dynamic_energy_j", pl.Float64, "the rest"),
    Column("time_reduction_percent", pl.Float64, "less than `sequential` at its least time", nullable=True),
    Column("energy_reduction_percent", pl.Float64, "less than `sequential` at its least time", nullable=True),
    Column(
        "iso_time_energy_reduction_percent",
        pl.Float64,
        "energy saved within the least time of `sequential+perseus`; empty where no plan is that fast",
        nullable=True,
    ),
    Column(
        "iso_energy_time_reduction_percent",
        pl.Float64,
        "time saved within the least energy of `sequential+perseus`; empty where no plan is that frugal",
        nullable=True,
    ),
    Column("time_increase_percent", pl.Float64, "more than `kareus` at its least time", nullable=True),
    Column("energy_increase_percent", pl.Float64, "more than `kareus` at its least time", nullable=True),
)

_ERRORS = tuple(
    Column(
        f"{name}_error_percent",
        pl.Float64,
        f"standard error of {name}_percent from the noise of measuring, in points; empty where it has none",
        nullable=True,
    )
    for name in ("time_reduction", "energy_reduction", "iso_time_energy_reduction", "iso_energy_time_reduction")
)

SAVINGS = TableSchema(
    name="savings",
    version=1,
    meaning="Methods of one workload: max throughput, frontier improvement, ablation, and what noise leaves open.",
    columns=(*_COMPARED, *_ERRORS),
    key=("method",),
)

COMPARISON = TableSchema(
    name="comparison",
    version=2,
    meaning="Methods of every workload of a campaign: max throughput, frontier improvement, ablation.",
    columns=(
        *_MEMBER,
        *_SHAPE,
        *SAVINGS.columns,
        Column("ran_time_percent", pl.Float64, "iteration time as it ran, above the predicted", nullable=True),
        Column("ran_energy_percent", pl.Float64, "energy as it ran, above the predicted", nullable=True),
    ),
    key=("part", "workload", "method"),
)

FLEET_COMPARISON = TableSchema(
    name="fleet_comparison",
    version=1,
    meaning="Methods of every emulated fleet of a campaign: strong scaling, max throughput, frontier improvement.",
    columns=(
        *_MEMBER,
        Column("fleet", pl.String, "name of the fleet"),
        *_SHAPE,
        Column("pipelines", pl.Int64, "data-parallel replicas of the pipeline", positive=True),
        Column("global_batch_size", pl.Int64, "sequences of one iteration of all pipelines", positive=True),
        *_COMPARED,
    ),
    key=("part", "workload", "fleet", "method"),
)

PASSES = TableSchema(
    name="passes",
    version=2,
    meaning="What each pass of the searches of a campaign chose, by partition.",
    columns=(
        *_MEMBER[1:],
        Column("partition", pl.String, "partition that was searched"),
        Column("chosen_by", pl.String, "pass, as in the table `candidates`"),
        Column("measured", pl.Int64, "candidates that it chose; others may have chosen them, too"),
        Column("on_frontier", pl.Int64, "of those, candidates on the measured frontier of the partition"),
    ),
    key=("workload", "partition", "chosen_by"),
)

SEARCH_TIME = TableSchema(
    name="search_time",
    version=3,
    meaning="What the searches of a campaign found and took, by partition; optimisation differs from run to run.",
    columns=(
        *_MEMBER[1:],
        Column("partition", pl.String, "partition that was searched"),
        Column("measured", pl.Int64, "candidates measured"),
        Column("on_frontier", pl.Int64, "of those, candidates on the measured frontier"),
        Column("profiling_s", pl.Float64, "testbed's clock spent on measuring (virtual if simulated)"),
        Column("looking_s", pl.Float64, "of that, on short looks"),
        Column("optimisation_s", pl.Float64, "planning machine's clock spent on surrogates and acquisition"),
        Column("strategy", pl.String, "strategy of the search"),
        Column("gpu_s", pl.Float64, "profiling_s times the GPUs that were busy meanwhile (virtual if simulated)"),
    ),
    key=("workload", "partition"),
)

PROFILER = TableSchema(
    name="profiler",
    version=2,
    meaning="Sweeps of the profiler of a campaign: the distribution over trials under each protocol.",
    columns=(
        *_MEMBER,
        Column("sweep", pl.String, "name of the sweep"),
        Column("partition", pl.String, "partition that was measured"),
        Column("window_s", pl.Float64, "window that was asked for", positive=True),
        Column("cooldown_s", pl.Float64, "rest before the window that was asked for"),
        Column("trials", pl.Int64, "measurements", positive=True),
        Column("energy_mean_j", pl.Float64, "mean of the energies of one execution on one GPU", positive=True),
        Column("energy_least_j", pl.Float64, "the least of them", positive=True),
        Column("energy_most_j", pl.Float64, "the most of them", positive=True),
        Column("energy_deviation_percent", pl.Float64, "standard deviation over the mean", nullable=True),
        Column("temperature_before_c", pl.Float64, "mean temperature at the start of the window"),
        Column("temperature_after_c", pl.Float64, "mean temperature at its end"),
        Column(
            "reference_energy_j",
            pl.Float64,
            "without noise, at the reference temperature; simulated testbeds only",
            nullable=True,
        ),
        Column(
            "warm_energy_mean_j",
            pl.Float64,
            "mean of the energies at the temperature that the GPU settles to; empty where that of the air is not known",
            nullable=True,
        ),
        Column(
            "warm_reference_energy_j",
            pl.Float64,
            "without noise, at the temperature that the GPU settles to; simulated testbeds only",
            nullable=True,
        ),
        Column("duration_mean_s", pl.Float64, "mean time of a measurement, cooldown and warm-up included"),
    ),
    key=("part", "workload", "sweep", "window_s", "cooldown_s"),
)
