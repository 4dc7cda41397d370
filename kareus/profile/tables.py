"""Tables of the profiler: single measurements, and what they say of components and whole instructions."""

import polars as pl

from kareus.artifacts.tables import Column, TableSchema

_EXECUTION = (
    Column("time_s", pl.Float64, "mean time of one execution", positive=True),
    Column("energy_j", pl.Float64, "mean energy of one execution on one GPU", positive=True),
    Column("repetitions", pl.Int64, "executions within the window", positive=True),
)
_THROTTLE_REASONS = Column("throttle_reasons", pl.List(pl.String), "why the clock fell below what was asked for")
_WINDOW = (
    Column("temperature_before_c", pl.Float64, "GPU temperature at the start of the window"),
    Column("temperature_after_c", pl.Float64, "GPU temperature at its end"),
    Column("clock_mean_mhz", pl.Float64, "mean SM clock within the window", positive=True),
    _THROTTLE_REASONS,
)

MEASUREMENTS = TableSchema(
    name="measurements",
    version=1,
    meaning="Measurements of programs on one testbed, one row each; the shelf's folder names what they share.",
    columns=(
        Column("program", pl.String, "hash of the program that ran"),
        Column("frequency_mhz", pl.Int64, "SM clock that was asked for", positive=True),
        Column("repeat", pl.Int64, "number of the repeated measurement, from 0"),
        Column("name", pl.String, "name of the program, for people"),
        *_EXECUTION,
        Column("window_s", pl.Float64, "length of the window as measured", positive=True),
        *_WINDOW,
        Column(
            "duration_s",
            pl.Float64,
            "testbed's clock spent, cooldown and warm-up included (virtual if simulated)",
            positive=True,
        ),
    ),
    key=("program", "frequency_mhz", "repeat"),
)

LOOKS = TableSchema(
    name="looks",
    version=1,
    meaning="Short looks at programs on one testbed: their time alone, right after warming up, without cooling down.",
    columns=(
        Column("program", pl.String, "hash of the program that ran"),
        Column("frequency_mhz", pl.Int64, "SM clock that was asked for", positive=True),
        Column("name", pl.String, "name of the program, for people"),
        Column("time_s", pl.Float64, "mean time of one execution while warming up", positive=True),
        Column("clock_mean_mhz", pl.Float64, "mean SM clock meanwhile", positive=True),
        _THROTTLE_REASONS,
        Column("duration_s", pl.Float64, "testbed's clock spent (virtual if simulated)", positive=True),
    ),
    key=("program", "frequency_mhz"),
)

DIRECTION_MEANING = (
    "`forward`, `backward`, or its parts `input-gradient` and `weight-gradient`; a backward or input gradient includes "
    "its recomputation"
)
TEMPERATURE = Column(
    "temperature_c",
    pl.Float64,
    "mean temperature of the GPU while energy_j was measured, in degC; null where it is not known",
    nullable=True,
)
IS_POWER_LIMITED = Column(
    "is_power_limited", pl.Boolean, "whether the power limit kept the GPU below frequency_mhz while this was measured"
)
COST = (
    Column("frequency_mhz", pl.Int64, "SM clock", positive=True),
    Column("time_s", pl.Float64, "mean time of one execution", positive=True),
    Column("energy_j", pl.Float64, "mean energy of one execution on one GPU", positive=True),
    TEMPERATURE,
    IS_POWER_LIMITED,
    Column("time_error_s", pl.Float64, "standard error of time_s from the noise of measuring"),
    Column("energy_error_j", pl.Float64, "standard error of energy_j from the noise of measuring"),
    Column("time_noise", pl.Float64, "relative standard deviation of one measured time, as its scatter says"),
    Column("energy_noise", pl.Float64, "relative standard deviation of one measured energy, as its scatter says"),
    Column(
        "measurements",
        pl.Int64,
        "measurements at this clock; time_s and energy_j also draw on other clocks'",
        positive=True,
    ),
)
"""Estimated costs of a program at a clock (`kareus.profile.smoothing`)."""

COMPONENTS = TableSchema(
    name="components",
    version=5,
    meaning="Parts of instructions, measured alone: what stands before, after and at the edges of the partitions, at "
    "all clocks, and the partitions as default nanobatching runs them, at a few. Costs are estimates from measurements "
    "at all of these clocks.",
    columns=(
        Column(
            "component",
            pl.String,
            "such as `forward-embedding`, `backward-loss`, `forward-attention-alone`, or the name of a partition",
        ),
        *COST,
    ),
    key=("component", "frequency_mhz"),
)

PROFILED_INSTRUCTIONS = TableSchema(
    name="profiled_instructions",
    version=5,
    meaning="Whole instructions, measured as one under each execution model that is not searched. Costs are estimates "
    "from measurements at all clocks, repeated where clocks are about as fast as the fastest.",
    columns=(
        Column("stage", pl.Int64, "pipeline stage, from 0"),
        Column("chunk", pl.Int64, "chunk of the stage's layers, from 0; always 0 unless the pipeline is interleaved"),
        Column("direction", pl.String, DIRECTION_MEANING),
        Column("execution", pl.String, "`sequential` or `nanobatching`"),
        *COST,
    ),
    key=("stage", "chunk", "direction", "execution", "frequency_mhz"),
)

TRIALS = TableSchema(
    name="trials",
    version=2,
    meaning="Sweep of the profiler: one partition measured over and over under several windows and cooldowns.",
    columns=(
        Column("partition", pl.String, "partition, at its default schedule"),
        Column("frequency_mhz", pl.Int64, "SM clock that was asked for", positive=True),
        Column("window_s", pl.Float64, "window that was asked for", positive=True),
        Column("cooldown_s", pl.Float64, "rest before the window that was asked for"),
        Column("settle_s", pl.Float64, "rest before each reading of the energy counter; 0 reads at the window's ends"),
        Column(
            "trial", pl.Int64, "number of the measurement, from 0; each starts as hot as the one before left the GPU"
        ),
        *_EXECUTION,
        *_WINDOW,
        Column("duration_s", pl.Float64, "testbed's clock spent (virtual if simulated)", positive=True),
        Column(
            "reference_energy_j",
            pl.Float64,
            "energy of one execution without noise, at the reference temperature; simulated testbeds only",
            nullable=True,
            positive=True,
        ),
        Column(
            "warm_energy_j",
            pl.Float64,
            "energy_j at the temperature that the GPU settles to; null where that of the air is not known",
            nullable=True,
            positive=True,
        ),
        Column(
            "warm_reference_energy_j",
            pl.Float64,
            "reference_energy_j at the temperature that the GPU settles to; simulated testbeds only",
            nullable=True,
            positive=True,
        ),
    ),
    key=("window_s", "cooldown_s", "trial"),
)
