"""Inputs of the report on a campaign: its members, and the tables of their reports."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from kareus.artifacts.configuration import load_slice
from kareus.artifacts.layout import WorkloadFolder
from kareus.artifacts.provenance import Provenance, TestbedIdentity
from kareus.artifacts.records import content_hash
from kareus.artifacts.tables import Row, read_provenance, read_table
from kareus.campaign.config import CAMPAIGN
from kareus.emulate.tables import FLEET
from kareus.errors import ArtifactError
from kareus.pipeline.tables import ITERATION
from kareus.profile.tables import TRIALS
from kareus.report.downloads import OF_PARTITION, OF_WORKLOAD, labelled, labelled_schema, read_download
from kareus.report.workload.headline import trust_words
from kareus.report.workload.inputs import PartitionSearch
from kareus.report.workload.tables import SAVINGS
from kareus.search.tables import CANDIDATES, PROPOSALS, ROUNDS
from kareus.training.comparison import RunComparison, compare_runs
from kareus.training.tables import ITERATIONS
from kareus.workload.slices import PlanSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignInputs:
    """A campaign, each of whose members was planned, emulated or measured, or refused."""

    name: str
    members: pl.DataFrame
    """The table `CAMPAIGN`."""
    provenance: Provenance
    testbeds: tuple[TestbedIdentity, ...]
    """Testbeds of its members, each once; several if they were measured on several."""
    iteration: dict[str, pl.DataFrame]
    """The table `ITERATION` by workload, labelled, as the next ones."""
    savings: dict[str, pl.DataFrame]
    """The table `SAVINGS` by workload."""
    runs: dict[str, list[RunComparison]]
    searches: dict[str, list[PartitionSearch]]
    fleet: dict[tuple[str, str], pl.DataFrame]
    """The table `FLEET` by workload and fleet."""
    trust: tuple[str, ...]
    """For which trainers and GPUs its plans are, and how far off each may be, as `trust_words`."""
    trials: dict[tuple[str, str], pl.DataFrame]
    """The table `TRIALS` by workload and sweep, after a column `testbed`."""

    def of_kind(self, kind: str) -> Iterator[Row]:
        """Members that were not refused, as rows of `CAMPAIGN`."""
        chosen = self.members.filter((pl.col("kind") == kind) & pl.col("refusal").is_null())
        yield from chosen.iter_rows(named=True)


def load_campaign(name: str, table: Path, results: Path) -> CampaignInputs:
    """Read the tables of the reports below `results` for the members in `table`.

    Raises:
        ArtifactError: a member has no report yet, or one of its tables is corrupt or of another version.
    """
    members = read_table(table, CAMPAIGN)
    planned = members.filter(pl.col("refusal").is_null())
    of = {kind: planned.filter(pl.col("kind") == kind) for kind in ("workload", "fleet", "sweep")}
    workloads = of["workload"]["workload"].unique(maintain_order=True).to_list()
    data = {workload: results / workload / "report/data" for workload in planned["workload"].unique()}
    iteration = {workload: read_download(data[workload], ITERATION) for workload in workloads}
    fleets = {
        workload: read_download(data[workload], FLEET)
        for workload in of["fleet"]["workload"].unique(maintain_order=True)
    }
    trials = {
        (workload, sweep): results / workload / "profile" / sweep / "trials.parquet"
        for workload, sweep in of["sweep"].select("workload", "name").unique(maintain_order=True).iter_rows()
    }
    parents = [
        *(read_provenance(data[w] / "iteration.parquet", labelled_schema(ITERATION, OF_WORKLOAD)) for w in workloads),
        *(read_provenance(data[w] / "fleet.parquet", labelled_schema(FLEET, OF_WORKLOAD)) for w in fleets),
        *(read_provenance(path, TRIALS) for path in trials.values()),
    ]
    planned_by = zip((*workloads, *fleets), parents, strict=False)  # sweeps plan nothing
    return CampaignInputs(
        name=name,
        members=members,
        provenance=_provenance(parents),
        testbeds=tuple(dict.fromkeys(p.testbed for p in parents if p.testbed is not None)),
        iteration=iteration,
        savings={w: read_download(data[w], SAVINGS).select(SAVINGS.polars.names()) for w in workloads},
        runs={w: _runs(data[w], iteration[w]) for w in workloads},
        searches={w: _searches(data[w]) for w in workloads},
        fleet={
            (workload, fleet): _fleet(fleets[workload], workload, fleet)
            for workload, fleet in of["fleet"].select("workload", "name").unique(maintain_order=True).iter_rows()
        },
        trust=tuple(dict.fromkeys(_trust(results / name, of) for name, of in planned_by)),
        trials={key: _trials(path) for key, path in trials.items()},
    )


def _provenance(parents: list[Provenance]) -> Provenance:
    """Return the provenance of tables over all members; without a testbed if there are several, which rows name."""
    origins = {(parent.testbed, parent.seed) for parent in parents}
    testbed, seed = origins.pop() if len(origins) == 1 else (None, None)
    hashes = content_hash([parent.config_hash for parent in parents])
    return Provenance(config_hash=hashes, testbed=testbed, seed=seed).stamped()


def _trust(folder: Path, provenance: Provenance) -> str:
    """Return for which trainer and GPU the plans in the folder of a workload are, and how far off they may be."""
    workload = load_slice(WorkloadFolder(folder).config("plan"), PlanSlice).workload
    return trust_words(workload, provenance.testbed.kind if provenance.testbed is not None else "")


def _runs(data: Path, iteration: pl.DataFrame) -> list[RunComparison]:
    iterations = read_download(data, ITERATIONS)
    return compare_runs(iterations, iteration) if len(iterations) else []


def _searches(data: Path) -> list[PartitionSearch]:
    tables = {schema.name: read_download(data, schema, OF_PARTITION) for schema in (CANDIDATES, ROUNDS, PROPOSALS)}
    return [
        PartitionSearch(
            partition=name, **{key: table.filter(pl.col("partition") == name) for key, table in tables.items()}
        )
        for name in tables[CANDIDATES.name]["partition"].unique(maintain_order=True)
    ]


def _trials(path: Path) -> pl.DataFrame:
    testbed = read_provenance(path, TRIALS).testbed
    if testbed is None:
        raise ArtifactError(f"{path}: says no testbed; rerun the stage that makes it.")
    return labelled(read_table(path, TRIALS), {"testbed": testbed.label})


def _fleet(fleets: pl.DataFrame, workload: str, fleet: str) -> pl.DataFrame:
    rows = fleets.filter(pl.col("fleet") == fleet)
    if rows.is_empty():
        raise ArtifactError(f"{workload}: its report has no fleet {fleet}; rerun report-fleets.")
    return rows
