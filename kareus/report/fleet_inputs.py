"""Inputs of the report on emulated fleets: their tables, the comparisons made of them, and clocks of stages.

A fleet's pipeline runs up to thousands of instructions, too many for a timeline; mean clocks show where a plan slows
down.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import Row, TableSchema, read_provenance, read_table
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ArtifactError
from kareus.frontiers.tables import MICROBATCH
from kareus.graph.records import UPDATING, Direction
from kareus.pipeline.compare import MethodComparison, compare_methods
from kareus.pipeline.config import PipelineConfig, PipelineSchedule
from kareus.pipeline.instructions import pipeline_instructions
from kareus.pipeline.methods import point_method
from kareus.report.downloads import OF_WORKLOAD, joined, labelled

COUNTS = ("fleet", "gpus", "pipelines", "num_microbatches")
StageClocks = list[float | None]
"""Of a stage: mean clock of forwards in MHz, mean clock of backwards, seconds busy; with the update, its seconds."""


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
        """All tables with their schemas, labelled with the workload and the testbed."""
        of = {"workload": self.workload, "testbed": self.testbed.label}
        tables = {FLEET: self.fleet, STRAGGLERS: self.stragglers, POWER_CAPS: self.power_caps, HOURS: self.hours}
        return [joined(schema, OF_WORKLOAD, [labelled(frame, of)]) for schema, frame in tables.items()]


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
    steady: float | None
    """None where the method is too slow for the hours, as `hourly`."""
    hourly: float | None

    @property
    def saving_percent(self) -> float | None:
        """Saving of plans by the hour over the best single plan, in percent; 0 where that is free."""
        if self.steady is None or self.hourly is None:
            return None
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


def with_clocks(inputs: FleetInputs, microbatch: Path, pipeline: PipelineConfig) -> FleetInputs:
    """Return the inputs with the clocks of every plan's stages.

    Args:
        inputs: without them.
        microbatch: file of the microbatch frontiers that the plans choose from.
        pipeline: order of its instructions.

    Raises:
        ArtifactError: the file is missing or damaged, or the plans choose from another.
    """
    try:
        clocks = tuple(
            fleet_clocks(inputs.fleet, read_table(microbatch, MICROBATCH), pipeline.schedule, pipeline.chunks)
        )
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{microbatch}: the fleets' plans are of other frontiers; emulate them anew.") from error
    return replace(inputs, clocks=clocks)


def fleet_clocks(
    fleet: pl.DataFrame, microbatch: pl.DataFrame, schedule: PipelineSchedule, chunks: int
) -> Iterator[list[StageClocks]]:
    """Yield the stages of each plan.

    Args:
        fleet: a table `FLEET`.
        microbatch: the table `MICROBATCH` that its plans choose from.
        schedule: order of the instructions.
        chunks: parts of every stage's layers.
    """
    points = {MICROBATCH.key_of(row): row for row in microbatch.iter_rows(named=True)}
    stages = 1 + max(microbatch["stage"])
    present = {(row["stage"], row["direction"]) for row in points.values()}
    updates = [[direction for direction in UPDATING if (stage, direction) in present] for stage in range(stages)]
    for row in fleet.iter_rows(named=True):
        method = point_method(row["method"])
        instructions = pipeline_instructions(schedule, stages, row["num_microbatches"], chunks=chunks, updates=updates)
        of_stage: list[list[Row]] = [[] for _ in range(stages)]
        for instruction, number in zip(instructions, row["points"], strict=True):
            key = instruction.key
            point = points[method, key.stage, key.chunk, str(key.direction), number]
            of_stage[key.stage].append(point)
        yield [_clocks(chosen) for chosen in of_stage]


def _clocks(chosen: list[Row]) -> StageClocks:
    forwards = [row for row in chosen if row["direction"] == Direction.FORWARD]
    backwards = [row for row in chosen if row["direction"] not in (Direction.FORWARD, *UPDATING)]
    updates = [row for row in chosen if row["direction"] in UPDATING]
    return [_mean_mhz(forwards), _mean_mhz(backwards), _seconds(chosen), *([_seconds(updates)] if updates else [])]


def _seconds(chosen: list[Row]) -> float:
    return float(round(sum(row["time_s"] for row in chosen), 4))


def _mean_mhz(chosen: list[Row]) -> float | None:
    """Return the mean clock, weighted by time."""
    if not chosen:
        return None
    return round(float(np.average([r["frequency_mhz"] for r in chosen], weights=[r["time_s"] for r in chosen])))


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
            **rows.select(COUNTS).row(0, named=True),
            reduction_s=rows["reduction_s"][0],
            exposed_s=rows["time_s"][0] - rows["pipeline_time_s"][0],
            methods=tuple(compare_methods(rows)),
        )
        for rows in fleets_of(inputs)
    ]


def has_hours(inputs: FleetInputs) -> bool:
    """Whether hours of any method were planned; all may be too slow for theirs."""
    return "hourly" in inputs.hours["policy"]


def charges(inputs: FleetInputs) -> list[Charge]:
    """Charges of every fleet and method that planned hours."""
    totals = inputs.hours.group_by("fleet", "method", "unit", maintain_order=True).agg(
        pl.when((pl.col("policy") == policy).any())
        .then(pl.col("charge").filter(pl.col("policy") == policy).sum())
        .alias(policy)
        for policy in ("steady", "hourly")
    )
    return [Charge(**row) for row in totals.to_dicts()]


def fleet_title(rows: pl.DataFrame) -> str:
    """Return what a fleet is, such as `10,240 GPUs: 128 pipelines of 16 microbatches`; rows are of a table `FLEET`."""
    gpus, pipelines, num_microbatches = rows.select("gpus", "pipelines", "num_microbatches").row(0)
    return f"{gpus:,} GPUs: {pipelines:,} pipelines of {num_microbatches:,} microbatches"


def fleet_titles(inputs: FleetInputs) -> dict[str, str]:
    """Return the size of every fleet by its name; fleets alike in size also have their names."""
    return told_apart({str(rows["fleet"][0]): f"{rows['gpus'][0]:,} GPUs" for rows in fleets_of(inputs)})


def told_apart(titles: Mapping[str, str]) -> dict[str, str]:
    """Return titles by name, where several have the same one with their names."""
    said = list(titles.values())
    return {name: title if said.count(title) == 1 else f"{title} ({name})" for name, title in titles.items()}


def fleet_data(inputs: FleetInputs) -> dict[str, Any]:
    """Return what the page shows of a plan that is clicked on: by fleet its size, its baseline and the stages."""
    fleets: dict[str, Any] = {}
    counted, titles = {fleet.fleet: fleet.counted for fleet in compare_fleets(inputs)}, fleet_titles(inputs)
    for row, clocks in zip(inputs.fleet.iter_rows(named=True), inputs.clocks or repeat([]), strict=False):
        size = {name: row[name] for name in COUNTS}
        size |= {"title": titles[row["fleet"]], "counted": counted[row["fleet"]]}
        fleet = fleets.setdefault(row["fleet"], size | {"plans": {}})
        cost = {name: row[name] for name in ("time_s", "pipeline_time_s", "energy_j", "power_w", "gap")}
        fleet["plans"].setdefault(row["method"], {})[str(row["plan"])] = cost | {"stages": clocks}
    return fleets


def fleets_of(inputs: FleetInputs) -> list[pl.DataFrame]:
    """Return the rows of `FLEET` of each fleet."""
    return inputs.fleet.partition_by("fleet", maintain_order=True)
