"""Inputs of the report on emulated fleets: their tables, and the comparisons and figures made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_provenance, read_table
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ArtifactError
from kareus.frontier.tables import MICROBATCH
from kareus.pipeline.compare import MethodComparison, compare_methods
from kareus.pipeline.config import PipelineSchedule
from kareus.plans.units import common_scale
from kareus.report.charts import Figure, chart_of, facet_of, legend_filter, looks, looks_of, spec_of, tooltip
from kareus.report.fleet.clocks import StageClocks, fleet_clocks
from kareus.report.frontier_panels import frontier_panels
from kareus.report.theme import PALETTE, Look

COUNTS = ("fleet", "gpus", "pipelines", "num_microbatches")
SECONDS_PER_HOUR = 3600.0


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
    clocks: tuple[list[StageClocks], ...] = ()
    """The stages of every row of `fleet`; empty where they are not known."""

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

    @property
    def counted(self) -> str:
        """How the gradient reduction counts: `hidden`, `exposed`, or `planned` with the other instructions."""
        if self.pipelines > 1 and not self.reduction_s:
            return "planned"
        return "exposed" if self.exposed_s else "hidden"


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
        workload=workload,
        testbed=provenance.testbed,
        provenance=provenance.stamped(),
        fleet=_joined(FLEET, fleet),
        stragglers=_joined(STRAGGLERS, stragglers),
        power_caps=_joined(POWER_CAPS, power_caps),
        hours=_joined(HOURS, hours),
    )


def with_clocks(inputs: FleetInputs, microbatch: Path, schedule: PipelineSchedule, chunks: int) -> FleetInputs:
    """Return the inputs with the clocks of every plan's stages.

    Args:
        inputs: without them.
        microbatch: file of the microbatch frontiers that the plans choose from.
        schedule: order of a pipeline's instructions.
        chunks: parts of every stage's layers.

    Raises:
        ArtifactError: the file is missing or damaged, or the plans choose from another.
    """
    try:
        clocks = tuple(fleet_clocks(inputs.fleet, read_table(microbatch, MICROBATCH), schedule, chunks))
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{microbatch}: the fleets' plans are of other frontiers; emulate them anew.") from error
    return replace(inputs, clocks=clocks)


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
        for own in _fleets(inputs)
    ]


def charges(inputs: FleetInputs) -> list[Charge]:
    """Charges of every fleet and method that planned hours."""
    totals = inputs.hours.group_by("fleet", "method", "unit", maintain_order=True).agg(
        pl.col("charge").filter(pl.col("policy") == policy).sum().alias(policy) for policy in ("steady", "hourly")
    )
    return [Charge(**row) for row in totals.to_dicts()]


def fleet_title(rows: pl.DataFrame) -> str:
    """Return what a fleet is, such as `10,240 GPUs: 128 pipelines of 16 microbatches`; rows are of a table `FLEET`."""
    gpus, pipelines, num_microbatches = rows.select("gpus", "pipelines", "num_microbatches").row(0)
    return f"{gpus:,} GPUs: {pipelines:,} pipelines of {num_microbatches:,} microbatches"


def fleet_titles(inputs: FleetInputs) -> dict[str, str]:
    """Return the size of every fleet by its name; fleets alike in size also have their names."""
    titles = {str(own["fleet"][0]): f"{own['gpus'][0]:,} GPUs" for own in _fleets(inputs)}
    said = list(titles.values())
    return {name: title if said.count(title) == 1 else f"{title} ({name})" for name, title in titles.items()}


def fleet_data(inputs: FleetInputs) -> dict[str, Any]:
    """Return what the page shows of a plan that is clicked on: by fleet its size, its baseline and the stages."""
    found: dict[str, Any] = {}
    counted = {fleet.fleet: fleet.counted for fleet in compare_fleets(inputs)}
    for row, clocks in zip(inputs.fleet.iter_rows(named=True), inputs.clocks or repeat([]), strict=False):
        size = {name: row[name] for name in COUNTS} | {"counted": counted[row["fleet"]]}
        own = found.setdefault(row["fleet"], size | {"plans": {}})
        cost = {name: row[name] for name in ("time_s", "pipeline_time_s", "energy_j", "power_w", "gap")}
        own["plans"].setdefault(row["method"], {})[str(row["plan"])] = cost | {"stages": clocks}
    return found


def _fleets(inputs: FleetInputs) -> list[pl.DataFrame]:
    return inputs.fleet.partition_by("fleet", maintain_order=True)


def fleet_figures(inputs: FleetInputs) -> list[Figure]:
    """Frontiers of every fleet, and power by the hour where hours were planned."""
    titles = fleet_titles(inputs)
    frontiers = frontier_panels(
        FLEET.name,
        "Iteration time and energy of each fleet",
        FLEET.name,
        {fleet_title(own): own for own in _fleets(inputs)},
        keys=("fleet", "plan"),
    )
    return [frontiers, *([_hours(inputs, titles)] if len(inputs.hours) else [])]


def _hours(inputs: FleetInputs, titles: Mapping[str, str]) -> Figure:
    """Mean power of the fleets in every hour, over the value of the series."""
    keys = ("fleet", "method", "unit", "hour", "value")
    hourly = inputs.hours.filter(pl.col("policy") == "hourly")
    means = hourly.group_by(keys, maintain_order=True).agg(power_w=pl.sum("energy_j") / SECONDS_PER_HOUR)
    factor, unit = common_scale(means["power_w"].to_list(), "W")
    frames = []
    for (fleet, of), own in means.group_by("fleet", "unit", maintain_order=True):
        title = titles[str(fleet)]
        powers = [
            _by_the_hour(f"{title}: mean power ({unit})", str(method), rows, "power_w", factor)
            for (method,), rows in own.group_by("method", maintain_order=True)
        ]
        series = own.unique("hour").sort("hour")
        frames += [*powers, _by_the_hour(f"{title}: {of}", "series", series, "value", 1.0)]
    rows = pl.concat(frames)
    lines = rows["line"].unique(maintain_order=True).to_list()
    known = looks_of([line for line in lines if line != "series"]) | {"series": Look(PALETTE["gray"], "stroke")}
    selection = legend_filter("line", list(known))
    tips = (("panel", "", ""), ("line", "", ""), ("hour", "hour", ""), ("value", "value", ",.4g"))
    chart = (
        chart_of(None, "hours_lines")
        .transform_filter(selection)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=alt.X("hour:Q", title="hour"),
            y=alt.Y("value:Q", title=None),
            color=looks("line", known)["color"],
            tooltip=tooltip(tips),
        )
        .add_params(selection)
    )
    return Figure(
        name=HOURS.name,
        title="Mean power of the fleet by the hour",
        table=HOURS.name,
        spec=spec_of(facet_of("hours", "panel", rows["panel"].unique(maintain_order=True).to_list(), chart)),
        data={"hours": rows},
        heads={"panel": "of", "line": "line", "hour": "hour", "value": "value"},
    )


def _by_the_hour(panel: str, line: str, rows: pl.DataFrame, column: str, factor: float) -> pl.DataFrame:
    """Return steps, with the last hour's value repeated at its end."""
    end = rows.tail(1).with_columns(pl.col("hour") + 1)
    return pl.concat([rows, end]).select(
        pl.lit(panel).alias("panel"),
        pl.lit(line).alias("line"),
        "hour",
        (pl.col(column) / factor).alias("value"),
    )
