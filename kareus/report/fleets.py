"""What the report on emulated fleets is made of: their tables, and from them the rows of its tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kareus.artifacts.provenance import Provenance, TestbedIdentity, derived
from kareus.artifacts.records import content_hash, to_plain
from kareus.artifacts.tables import TableSchema, read_provenance, read_table
from kareus.emulate.tables import FLEET, HOURS, POWER_CAPS, STRAGGLERS
from kareus.errors import ArtifactError
from kareus.pipeline.compare import MethodComparison, compare_methods, with_reductions

COUNTS = ("fleet", "gpus", "pipelines", "num_microbatches")
PLAN_COLUMNS = (
    "time_s",
    "energy_j",
    "static_energy_j",
    "dynamic_energy_j",
    "gap",
    "time_reduction_percent",
    "energy_reduction_percent",
)


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
    """What a method's hours cost or emit, by policy."""

    fleet: str
    method: str
    unit: str
    steady: float
    hourly: float

    @property
    def saving_percent(self) -> float:
        """What choosing plans by the hour saves of the best plan from the start; 0 where that is free."""
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


def fleets_data(inputs: FleetInputs) -> dict[str, Any]:
    """Everything that the page shows, in the units that its keys end in; gaps are fractions."""
    return {
        "workload": inputs.workload,
        "testbed": to_plain(inputs.testbed) | {"label": inputs.testbed.label},
        "provenance": to_plain(inputs.provenance),
        "fleets": [{**to_plain(own), "frontiers": _frontiers(inputs, own.fleet)} for own in compare_fleets(inputs)],
        "stragglers": inputs.stragglers.drop("points").to_dicts(),
        "power_caps": inputs.power_caps.drop("points").to_dicts(),
        "hours": _powers(inputs.hours),
        "charges": [to_plain(row) | {"saving_percent": row.saving_percent} for row in charges(inputs)],
    }


def _frontiers(inputs: FleetInputs, name: str) -> list[dict[str, Any]]:
    own = inputs.fleet.filter(pl.col("fleet") == name)
    plans = with_reductions(own, own).sort("time_s")
    return [
        {"method": method, "plans": plans.filter(pl.col("method") == method).select(PLAN_COLUMNS).to_dicts()}
        for method in own["method"].unique(maintain_order=True)
    ]


def _powers(hours: pl.DataFrame) -> list[dict[str, Any]]:
    """Mean power of a fleet in every hour, by method and policy, beside the value of the series."""
    keys = ("fleet", "method", "policy", "unit", "hour", "value")
    means = hours.group_by(keys, maintain_order=True).agg((pl.sum("energy_j") / 3600).alias("power_w"))
    lines = means.partition_by("fleet", "method", "policy", "unit", maintain_order=True)
    return [
        line.select("fleet", "method", "policy", "unit").row(0, named=True)
        | line.select("hour", "value", "power_w").to_dict(as_series=False)
        for line in lines
    ]
