"""Inputs of the report on emulated fleets: their tables, and the comparisons and figures made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_provenance, read_table
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ArtifactError
from kareus.pipeline.compare import MethodComparison, compare_methods, with_reductions
from kareus.report.charts import Axis, Form, Line, Panel, Plot, Series, Style, method_style
from kareus.report.workload.frontiers import PLAN_TIPS, frontier

COUNTS = ("fleet", "gpus", "pipelines", "num_microbatches")
SECONDS_PER_HOUR = 3600.0
FLEET_TIPS = tuple(replace(tip, form=Form.MEGAJOULES) if tip.form is Form.KILOJOULES else tip for tip in PLAN_TIPS)


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """Tables of all fleets of a workload, those with the most microbatches in a pipeline last."""

    workload: str
    testbed: TestbedIdentity
    provenance: Provenance
    fleet: pl.DataFrame
    stragglers: pl.DataFrame
    power_caps: pl.DataFrame
    hours: pl.DataFrame

    def tables(self) -> list[tuple[TableSchema, pl.DataFrame]]:
        """All tables with their schemas."""
        return [
            (FLEET, self.fleet),
            (STRAGGLERS, self.stragglers),
            (POWER_CAPS, self.power_caps),
            (HOURS, self.hours),
        ]


@dataclass(frozen=True, slots=True)
class FleetComparison:
    """Methods of one fleet, compared as those of a workload are."""

    fleet: str
    gpus: int
    pipelines: int
    num_microbatches: int
    reduction_s: float
    exposed_s: float
    methods: tuple[MethodComparison, ...]


@dataclass(frozen=True, slots=True)
class Charge:
    """Cost or emissions of a method's hours, by policy."""

    fleet: str
    method: str
    unit: str
    steady: float
    hourly: float

    @property
    def saving_percent(self) -> float:
        """Saving of plans by the hour over the best single plan, in percent; 0 where that is free."""
        return 100 * (self.steady - self.hourly) / abs(self.steady) if self.steady else 0.0


def load_fleets(
    workload: str,
    fleet: Sequence[Path],
    stragglers: Sequence[Path],
    power_caps: Sequence[Path],
    hours: Sequence[Path],
) -> FleetInputs:
    """Read the tables of all fleets.

    Raises:
        ArtifactError: a table that is missing or corrupt, or tables of different workloads or testbeds.
    """
    tables = {FLEET: fleet, STRAGGLERS: stragglers, POWER_CAPS: power_caps, HOURS: hours}
    parents = {str(path): read_provenance(path, schema) for schema, paths in tables.items() for path in paths}
    provenance = derived(content_hash([parent.config_hash for parent in parents.values()]), parents)
    if provenance.testbed is None:
        raise ArtifactError(f"{fleet[0]}: says no testbed; rerun the stage that makes it.")
    return FleetInputs(
        workload, provenance.testbed, provenance.stamped(), *(_joined(s, paths) for s, paths in tables.items())
    )


def _joined(schema: TableSchema, paths: Sequence[Path]) -> pl.DataFrame:
    frames = [read_table(path, schema) for path in paths]
    return pl.concat(frames).sort("num_microbatches", "gpus", "fleet", maintain_order=True)


def compare_fleets(inputs: FleetInputs) -> list[FleetComparison]:
    """Compare the methods of every fleet.

    Raises:
        ArtifactError: a fleet lacks one of the baselines.
    """
    return [
        FleetComparison(
            **own.select(COUNTS).row(0, named=True),
            reduction_s=own["reduction_s"][0],
            exposed_s=own["time_s"][0] - own["pipeline_time_s"][0],
            methods=tuple(compare_methods(own)),
        )
        for own in inputs.fleet.partition_by("fleet", maintain_order=True)
    ]


def charges(inputs: FleetInputs) -> list[Charge]:
    """Charges of every fleet and method that planned hours."""
    totals = inputs.hours.group_by("fleet", "method", "unit", maintain_order=True).agg(
        pl.col("charge").filter(pl.col("policy") == policy).sum().alias(policy) for policy in ("steady", "hourly")
    )
    return [Charge(**row) for row in totals.to_dicts()]


def fleet_plots(inputs: FleetInputs) -> list[Plot]:
    """Frontiers of every fleet, and power by the hour where hours were planned."""
    return [_frontiers(inputs), *([_hours(inputs)] if len(inputs.hours) else [])]


def _frontiers(inputs: FleetInputs) -> Plot:
    panels = []
    for own in inputs.fleet.partition_by("fleet", maintain_order=True):
        rows = with_reductions(own, own).with_columns(gap_percent=100 * pl.col("gap")).sort("time_s")
        counts = own.select(COUNTS).row(0, named=True)
        title = "{fleet}: {num_microbatches:,} microbatches on {pipelines:,} pipelines".format_map(counts)
        panels.append(
            Panel(
                title=title,
                x=Axis(column="time_s", label="iteration time (s)"),
                y=Axis(column="energy_j", label="iteration energy, all GPUs (MJ)", scale=1e-6),
                series=tuple(
                    frontier(rows, method, FLEET_TIPS) for method in own["method"].unique(maintain_order=True)
                ),
            )
        )
    return Plot(
        name=FLEET.name, title="Iteration time and energy of each fleet", table=FLEET.name, panels=tuple(panels)
    )


def _hours(inputs: FleetInputs) -> Plot:
    """Mean power of the fleets in every hour, over the value of the series."""
    keys = ("fleet", "method", "unit", "hour", "value")
    hourly = inputs.hours.filter(pl.col("policy") == "hourly")
    means = hourly.group_by(keys, maintain_order=True).agg(power_w=pl.sum("energy_j") / SECONDS_PER_HOUR)
    panels = []
    for (fleet, unit), own in means.group_by("fleet", "unit", maintain_order=True):
        lines = [
            _by_the_hour(method, rows, method_style(method).color)
            for (method,), rows in own.group_by("method", maintain_order=True)
        ]
        hour, power = (
            Axis(column="hour", label="hour"),
            Axis(column="power_w", label="power, all GPUs (MW)", scale=1e-6),
        )
        series = _by_the_hour(f"series ({unit})", own.unique("hour").sort("hour"), "ink")
        panels += [
            Panel(title=f"{fleet}: mean power", x=hour, y=power, series=tuple(lines)),
            Panel(title=f"{fleet}: series", x=hour, y=Axis(column="value", label=str(unit)), series=(series,)),
        ]
    return Plot(name=HOURS.name, title="Mean power of the fleet by the hour", table=HOURS.name, panels=tuple(panels))


def _by_the_hour(name: str, rows: pl.DataFrame, color: str) -> Series:
    """Return a series of steps, with the last hour's value repeated at its end."""
    end = rows.tail(1).with_columns(pl.col("hour") + 1)
    return Series(name=name, points=pl.concat([rows, end]), style=Style(color=color), line=Line.STEPS)
