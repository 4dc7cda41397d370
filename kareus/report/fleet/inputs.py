"""Inputs of the report on emulated fleets: their tables, and the comparisons made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity, derived
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import TableSchema, read_provenance, read_table
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ArtifactError
from kareus.frontiers.tables import MICROBATCH
from kareus.pipeline.compare import MethodComparison, compare_methods
from kareus.pipeline.config import PipelineSchedule
from kareus.report.fleet.clocks import StageClocks, fleet_clocks

COUNTS = ("fleet", "gpus", "pipelines", "num_microbatches")


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
        for own in fleets_of(inputs)
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
    return told_apart({str(own["fleet"][0]): f"{own['gpus'][0]:,} GPUs" for own in fleets_of(inputs)})


def told_apart(titles: Mapping[str, str]) -> dict[str, str]:
    """Return titles by name, where several have the same one with their names."""
    said = list(titles.values())
    return {name: title if said.count(title) == 1 else f"{title} ({name})" for name, title in titles.items()}


def fleet_data(inputs: FleetInputs) -> dict[str, Any]:
    """Return what the page shows of a plan that is clicked on: by fleet its size, its baseline and the stages."""
    found: dict[str, Any] = {}
    counted, titles = {fleet.fleet: fleet.counted for fleet in compare_fleets(inputs)}, fleet_titles(inputs)
    for row, clocks in zip(inputs.fleet.iter_rows(named=True), inputs.clocks or repeat([]), strict=False):
        size = {name: row[name] for name in COUNTS}
        size |= {"title": titles[row["fleet"]], "counted": counted[row["fleet"]]}
        own = found.setdefault(row["fleet"], size | {"plans": {}})
        cost = {name: row[name] for name in ("time_s", "pipeline_time_s", "energy_j", "power_w", "gap")}
        own["plans"].setdefault(row["method"], {})[str(row["plan"])] = cost | {"stages": clocks}
    return found


def fleets_of(inputs: FleetInputs) -> list[pl.DataFrame]:
    """Return the rows of `FLEET` of each fleet."""
    return inputs.fleet.partition_by("fleet", maintain_order=True)
